"""Counts what a host launches for a step on a GPU, and how long that takes it, without a GPU.

    python -m benchmarks.gpu_host
    python -m benchmarks.gpu_host --shape 0.5B --decoding 16 --prompt 240

The step has rows that decode and a piece of a prompt: such steps are launched kernel by kernel
(worker.cuda.graphs). The model is the one that serves, on tensors without memory; Triton compiles for sm_90,
and does all that a host does for a launch but the call of the driver, which takes some 3 us more for each.
What torch launches is counted as operations that give new values; in place of a GPU's launch each takes what
it takes torch to find the shape of its result.

The figures are of one core of the host, and of the forward pass alone: reading the plan, uploads and
sampling are not in them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
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
from worker.attention.kv_cache_spec import CacheLayout
from worker.memory.kv_cache import KVCache
from worker.models.base import LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.startup.implementation import choose_implementation
from worker.step.rows import RowTable

META, DTYPE, BLOCK_SIZE, ROWS, RUNS = torch.device("meta"), torch.bfloat16, 16, 256, 9
NO_LAUNCH = ("view", "slice", "split", "select", "empty", "flatten", "as_strided", "transpose", "unsqueeze")
"""Parts of names of torch's operations that give another view, or memory without values."""


class _NoDevice:
    """What the inputs of a step ask of a worker.cuda.device.device.Device."""

    place = META

    def send_into(self, target: torch.Tensor, values: np.ndarray[Any, Any]) -> None:
        """Nothing is there to write to."""


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


@contextmanager
def without_launches(capability: int = 90) -> Iterator[Counter[str]]:
    """Triton compiles, once for each configuration, and launches nothing. Yields the number of launches by
    kernel."""
    from triton.runtime.jit import JITFunction

    from kernels.triton.compile_check import believing

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


class MixedStep:
    """The forward pass of rows that decode, and of a piece of one prompt."""

    def __init__(self, folder: Path, decoding: int, prompt: int) -> None:
        """folder: has config.json."""
        from worker.cuda.rows import DeviceRows
        from worker.cuda.step_buffers import StepBuffers, StepShape

        command = worker_pb2.Initialize(model_path=str(folder), device="cuda", load_format="dummy")
        config = choose_implementation(command, "cuda")
        self.model: LanguageModel = FAMILIES[config.architecture].build(config, Placement(DTYPE, META))
        specs = self.model.kv_cache_specs()
        self._cache = KVCache(specs, CacheLayout(BLOCK_SIZE, 1024, DTYPE, META))
        rows, device = RowTable(ROWS, 8192, config.vocab_size, BLOCK_SIZE, 1024), _NoDevice()
        tokens = decoding + prompt
        device_rows = DeviceRows(rows, device)  # type: ignore[arg-type]
        self._buffers = StepBuffers(rows, device_rows, device, max(tokens, ROWS), specs)  # type: ignore[arg-type]
        self._shape = StepShape(decoding + 1, tokens, decoding, decoding)

    @torch.inference_mode()
    def run(self) -> None:
        """Launches it once."""
        self.model(self._buffers.batch(self._shape), self._cache.layers)


def main() -> None:
    """Prints launches by name, and microseconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="8B", choices=[name for name in SHAPES if name != "tiny"])
    parser.add_argument("--decoding", type=int, default=16, help="rows")
    parser.add_argument("--prompt", type=int, default=240, help="tokens of the piece")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: nothing is compiled then")
    with tempfile.TemporaryDirectory() as folder, without_launches() as counts:
        SHAPES[options.shape].write(Path(folder))
        step = MixedStep(Path(folder), options.decoding, options.prompt)
        step.run()  # compiles
        counts.clear()
        with TorchLaunches() as launches:
            step.run()
        of_triton, took = Counter(counts), []
        for _ in range(RUNS):
            began = time.process_time_ns()
            step.run()
            took.append((time.process_time_ns() - began) / 1000)
    about = SHAPES[options.shape].about
    print(f"{about}: {options.decoding} rows that decode, {options.prompt} tokens of a prompt")
    for what, found in (("Triton", of_triton), ("torch", launches.counts)):
        names = ", ".join(f"{name} {count}" for name, count in found.most_common())
        print(f"{sum(found.values()):5} launches of {what}: {names}")
    middle = statistics.median(took)
    print(f"{middle:5.0f} us of the host ({min(took):.0f} to {max(took):.0f}), without calls of the driver")


if __name__ == "__main__":
    main()
