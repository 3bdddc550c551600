"""Counts what a host launches for a step on a GPU, and how long that takes it, without a GPU.

    python -m benchmarks.gpu_host
    python -m benchmarks.gpu_host --shape 0.5B --decoding 128 --prompt 1920

The step has rows that decode, and a piece of a prompt; others may begin and end. It is the whole of what a
worker does for it: reading the plan, changing rows, uploads, the forward pass, logits, sampling, and the copy
of the tokens; as it serves, with the forward pass in a graph and sampling in another (worker.cuda.graphs),
and launched kernel by kernel. The model is the
one that serves, on tensors without memory; Triton compiles for sm_90, and does all that a host does for a
launch but the call of the driver, which takes some 3 us for each launch and some 10 for a copy; nor is the
driver's time for the launch of a graph in the figure. What torch launches is counted as operations that give
new values; in place of a GPU's launch each takes what it takes torch to find the shape of its result.

The time is that of one core of the host. Temporaries are the most bytes that tensors of a step take at once,
as a graph of it keeps them in the pool that all graphs share.
"""

import argparse
import os
import statistics
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu_models import SHAPES
from kernels.triton import requirements
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.attention.kv_cache_spec import CacheLayout
from worker.cuda.device.device import Memory, Run
from worker.cuda.device.host_device import Passed
from worker.cuda.graphs import sampling_sizes
from worker.memory.kv_cache import KVCache
from worker.memory.swap_space import make_swap_space
from worker.models.base import LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.startup.implementation import choose_implementation
from worker.step.rows import RowTable
from worker.step.warmup_plans import prefill_plan

META, DTYPE = torch.device("meta"), torch.bfloat16
BLOCK_SIZE, BLOCKS, ROWS, STEPS, RUNS, SHORT = 16, 1024, 256, 32, 9, 16
NO_LAUNCH = ("view", "slice", "split", "select", "empty", "flatten", "as_strided", "transpose", "unsqueeze")
"""Parts of names of torch's operations that give another view, or memory without values."""


class NoDevice:
    """A worker.cuda.device.device.Device that has no memory, and computes nothing. `copies` counts those from
    and to it, and `graphs` those that run."""

    place, name, arithmetic = META, "nothing", "none"

    def __init__(self) -> None:
        self.copies = self.graphs = 0

    def send(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        """Of its shape."""
        self.copies += 1
        return torch.from_numpy(values).to(META)

    def send_into(self, target: torch.Tensor, values: np.ndarray[Any, Any]) -> None:
        """Nothing is there to write to."""
        self.copies += 1

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        self.copies += 1
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def record(self) -> Passed:
        """What has passed."""
        return Passed()

    def capture(self, run: Run) -> Run:
        """What counts and does nothing else."""
        output = run()

        def replay() -> torch.Tensor:
            self.graphs += 1
            return output

        return replay

    def synchronize(self) -> None:
        """Nothing runs."""

    def memory(self) -> Memory:
        """There is none."""
        return Memory(0, 0)

    def peak_of(self, run: Callable[[], object]) -> int:
        """Runs it, in no memory."""
        run()
        return 0


class TorchLaunches(TorchDispatchMode):
    """Counts what torch launches, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__.strip("_")
        if not any(part in name for part in NO_LAUNCH):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


class Temporaries(TorchDispatchMode):
    """Counts the bytes of tensors that operations give, and of which there are at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = all(given.alias_info is None for given in function._schema.returns)  # neither view nor input
        if is_new and isinstance(result, torch.Tensor) and result.is_meta:
            self.now += result.nbytes
            self.most = max(self.most, self.now)
            weakref.finalize(result, self._ended, result.nbytes)
        return result

    def _ended(self, num_bytes: int) -> None:
        self.now -= num_bytes


@contextmanager
def without_launches(capability: int = 90) -> Iterator[Counter[str]]:
    """Triton compiles, once for each configuration, and launches nothing. Yields the number of launches by
    kernel."""
    from triton.runtime.jit import JITFunction

    from ptx_emulator.compile_check import believing

    counts, run = Counter[str](), JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        counts[kernel.__name__] += 1
        return run(kernel, *args, grid=grid, warmup=True, **options)

    patches = (
        mock.patch.object(requirements, "INTERPRETED", True),
        mock.patch.object(JITFunction, "run", compile_only),
    )
    with believing(capability), patches[0], patches[1]:
        yield counts


class MixedSteps:
    """Steps of rows that decode, each with a further piece of one prompt, as a worker executes them."""

    def __init__(self, folder: Path, decoding: int, prompt: int, beginning: int = 0) -> None:
        """folder: has config.json. beginning: rows that begin with each step: they compute SHORT tokens, draw
        one, and end with the next step."""
        from worker.cuda.backend import CudaBackend
        from worker.cuda.sampling.sampler import CudaSampler
        from worker.executor.executor import StepExecutor

        command = worker_pb2.Initialize(model_path=str(folder), device="cuda", load_format="dummy")
        config = choose_implementation(command, "cuda")
        model: LanguageModel = FAMILIES[config.architecture].build(config, Placement(DTYPE, META))
        cache = KVCache(model.kv_cache_specs(), CacheLayout(BLOCK_SIZE, BLOCKS, DTYPE, META))
        rows = RowTable(ROWS, STEPS * prompt + 1, config.vocab_size, BLOCK_SIZE, BLOCKS)
        self.tokens = tokens = decoding + prompt + beginning * SHORT
        self.device, swap = NoDevice(), make_swap_space(0, cache)
        sampler = CudaSampler(ROWS, config.vocab_size, META, None)
        self.backend = CudaBackend(model, cache, swap, rows, sampler, max(tokens, ROWS), self.device)
        self._executor = StepExecutor(rows, self.backend, max(tokens, ROWS))
        self._decoding, self._prompt, self._beginning, self._done = decoding, prompt, beginning, 0
        counts = [1] * decoding + [STEPS * prompt] + [SHORT] * beginning
        first = prefill_plan(counts, BLOCK_SIZE, one_block=True)
        for new in first.new_rows[:decoding]:
            new.blocks = pack_u32([0] * STEPS)
        for new in first.new_rows[decoding + 1 :]:
            new.sampling.temperature = 1
        self._new_rows = first.new_rows[decoding + 1 :]
        self._executor.execute(self._plan(first))

    def capture(self) -> None:
        """Has the steps from here on run in a graph, and sample in another."""
        self.backend.capture(self.tokens)
        self.backend.capture_sampling(sampling_sizes(self._decoding + self._beginning)[-1])

    def _plan(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepPlan:
        """Returns the plan with the next tokens of all rows; all but that of the prompt sample."""
        decoding, beginning = self._decoding, self._beginning
        rows = range(decoding + 1 + beginning)
        starts = [self._done] * decoding + [self._done * self._prompt] + [0] * beginning
        plan.rows, plan.starts = pack_u32(rows), pack_u32(starts)
        plan.counts = pack_u32([1] * decoding + [self._prompt] + [SHORT] * beginning)
        plan.sample_rows = plan.sample_sources = pack_u32([row for row in rows if row != decoding])
        self._done += 1
        return plan

    def run(self) -> None:
        """Executes the next step."""
        ended = pack_u32(range(self._decoding + 1, self._decoding + 1 + self._beginning))
        plan = worker_pb2.StepPlan(removed_rows=ended, new_rows=self._new_rows)
        self._executor.execute(self._plan(plan))


def measure(steps: MixedSteps, counts: Counter[str]) -> Iterator[str]:
    """Yields lines on a step: what is launched, and microseconds."""
    steps.run()  # compiles
    counts.clear()
    steps.device.copies = steps.device.graphs = 0
    with TorchLaunches() as launches:
        steps.run()
    copies, graphs, ours = steps.device.copies, steps.device.graphs, Counter(counts)
    with Temporaries() as temporaries:
        steps.run()
    for what, found in (("Triton", ours), ("torch", launches.counts)):
        names = ", ".join(f"{name} {count}" for name, count in found.most_common())
        yield f"{sum(found.values()):5} launches of {what}: {names}"
    yield f"{graphs:5} graphs, {copies} copies, {temporaries.most / 1e6:.0f} MB of temporaries"
    took = []
    for _ in range(RUNS):
        began = time.process_time_ns()
        steps.run()
        took.append((time.process_time_ns() - began) / 1000)
    middle = statistics.median(took)
    yield f"{middle:5.0f} us of the host ({min(took):.0f} to {max(took):.0f}), without calls of the driver"


def main() -> None:
    """Prints launches by name, and microseconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="8B", choices=[name for name in SHAPES if "tiny" not in name])
    parser.add_argument("--decoding", type=int, default=16, help="rows")
    parser.add_argument("--prompt", type=int, default=240, help="tokens of the piece")
    parser.add_argument("--beginning", type=int, default=0, help=f"rows that begin, with {SHORT} tokens")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: nothing is compiled then")
    about = SHAPES[options.shape].about
    sizes = options.decoding, options.prompt, options.beginning
    print("{}: {} rows that decode, {} tokens of a prompt, {} rows that begin".format(about, *sizes))
    with tempfile.TemporaryDirectory() as folder, without_launches() as counts:
        SHAPES[options.shape].write(Path(folder))
        steps = MixedSteps(Path(folder), *sizes)
        print("launched kernel by kernel", *measure(steps, counts), sep="\n")
        steps.capture()
        print("in a graph", *measure(steps, counts), sep="\n")


if __name__ == "__main__":
    main()
