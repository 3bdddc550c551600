"""A worker that serves on a GPU that is not there: Triton reads what it would compile, and launches nothing.

    python -m tests.worker.cuda.serve_compiling

Prints as JSON which kernels it met at the start and while serving: without warm-up, with graphs, eager. What
tokens come of it does not matter; memory that kernels would have written is zero.
"""

import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction

from kernels.triton import requirements as support
from kernels.triton.capabilities import DEFAULT
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1.generation_pb2 import LogprobOptions
from ptx_emulator.compile_check import believing
from tests.checkpoints import make_checkpoint
from tests.worker.adapters.test_rows import adapter_of, synthetic
from tests.worker.cuda.host_devices import load_on
from tests.worker.fakes import Driver, resolved_params
from worker.cuda.backend import CudaBackend
from worker.cuda.device import HostDevice, Memory
from worker.cuda.startup.warm_up import CompileWatch
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.platforms.cuda import CudaPlatform
from worker.step.warmup_plans import prefill_plan

SIZES = {
    "max_num_seqs": 20,
    "num_blocks": 400,
    "block_size": 16,
    "max_num_batched_tokens": 64,
    "swap_space_bytes": 1 << 20,
}
MEMORY = Memory(total=12 << 20, free=8 << 20)
PARAMS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 0.7, "min_p": 0.1},
    {"temperature": 0.7, "typical_p": 0.5},
    {"presence_penalty": 1.0},
    {"temperature": 1.0, "top_k": 3, "repetition_penalty": 1.5},
]


def _zeroed(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, **options: Any) -> torch.Tensor:
        tensor = make(*args, **options)
        return tensor if tensor.is_meta else tensor.zero_()

    return made


def read(source: Any, target: Any, options: dict[str, Any]) -> SimpleNamespace:
    """The first stage of Triton's compiler: the kernel's source, with the types and constants of a launch.
    Raises what is wrong with them. Optimizing and assembling, most of its time, would change nothing here."""
    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parsed = backend.parse_options({**options, **source.parse_options()})
    implementation = backend.get_codegen_implementation(parsed)
    source.make_ir(target, parsed, implementation, backend.get_module_map(), context)
    return SimpleNamespace()


@contextmanager
def offline() -> Iterator[list[str]]:
    """Launches read their kernels, and that is all. Yields the names of those that are launched inside, once
    for each configuration."""
    names: list[str] = []
    known: set[int] = set()
    run = JITFunction.run

    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        configuration = run(kernel, *args, grid=grid, warmup=True, **options)
        if id(configuration) not in known:
            known.add(id(configuration))
            names.append(kernel.__name__)
        return configuration

    with ExitStack() as stack:
        stack.enter_context(believing(DEFAULT))
        for owner, name, value in (
            (support, "INTERPRETED", True),
            (torch, "empty", _zeroed(torch.empty)),
            (torch, "empty_like", _zeroed(torch.empty_like)),
            (triton.compiler, "compile", read),
            (JITFunction, "run", note),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield names


def serve(driver: Driver) -> None:
    """Any number of rows, prompts of any length in pieces, beside rows that decode; forks; whatever rows may
    ask of the sampler. Where there are adapters, some rows have one."""
    rng, choose = random.Random(5), random.Random(7)
    backend: Any = driver.runner.backend  # type: ignore[attr-defined]
    owners = [None]
    for number in range(2) if backend.adapters is not None else ():
        backend.adapters.store.add(synthetic(backend.model, number))
        owners.append(number)
    for step in range(60):
        for _ in range(rng.choice([0, 0, 1, 1, 3])):
            if len(driver.free_rows) > 2:
                wants = LogprobOptions(top_n=step % 4) if step % 3 == 0 else None
                params = resolved_params(**rng.choice(PARAMS))
                prompt = [1] * rng.choice([1, 2, 15, 16, 17, 50])
                siblings = step % 5 == 0 and len(prompt) < 16
                adapter = adapter_of(choose.choice(owners))
                driver.add(prompt, rng.randint(1, 12), params, 1 + siblings, wants=wants, adapter=adapter)
        driver.step()
    driver.run()
    driver.step()  # rows that have ended


def swap(runner: StepExecutor[CudaBackend]) -> None:
    """Blocks to host memory and back, one and some."""
    for count in (1, 3):
        ids = pack_u32(range(count))
        runner.execute(worker_pb2.StepPlan(swap_out_blocks=ids, swap_out_host_blocks=ids))
        runner.execute(worker_pb2.StepPlan(swap_in_blocks=ids, swap_in_host_blocks=ids))


def sample(runner: StepExecutor[CudaBackend]) -> None:
    """Rows with anything that a request can ask for, many or few of it, that begin and decode a few steps."""
    rng = random.Random(6)
    for _ in range(40):
        plan = prefill_plan(
            [rng.randint(1, 3) for _ in range(rng.randint(1, SIZES["max_num_seqs"]))], 16, one_block=True
        )
        for new in plan.new_rows:
            new.sampling.CopyFrom(resolved_params(**rng.choice(PARAMS)))
            rng.choice(WISHES)(new, rng.choice([1, 2, 5, 16, 40]))
        runner.execute(plan)
        for ahead in range(rng.randint(0, 2)):
            _decode(runner, plan, ahead)
        runner.execute(worker_pb2.StepPlan(removed_rows=plan.rows))


def _decode(runner: StepExecutor[CudaBackend], plan: worker_pb2.StepPlan, ahead: int) -> None:
    """One token of each row that is no beam."""
    rows = [new.row for new in plan.new_rows if not new.num_beam_candidates]
    if rows:
        lengths = [new.prompt_len + ahead for new in plan.new_rows if not new.num_beam_candidates]
        runner.execute(
            worker_pb2.StepPlan(
                rows=pack_u32(rows),
                starts=pack_u32(lengths),
                counts=pack_u32([1] * len(rows)),
                sample_rows=pack_u32(rows),
                sample_sources=pack_u32(range(len(rows))),
            )
        )


def _bad_words(new: worker_pb2.NewRow, count: int) -> None:
    for length in range(count):
        new.bad_words.add(ids=range(1, 2 + length % 7))


def _stops(new: worker_pb2.NewRow, count: int) -> None:
    new.min_tokens = 3
    new.stop_token_ids.extend(range(count))


def _bias(new: worker_pb2.NewRow, count: int) -> None:
    for token in range(count):
        new.sampling.logit_bias[token] = 1.0


def _allowed(new: worker_pb2.NewRow, count: int) -> None:
    new.sampling.allowed_token_ids.extend(range(count))


def _logprobs(new: worker_pb2.NewRow, count: int) -> None:
    new.logprobs.top_n = count


def _logprobs_of(new: worker_pb2.NewRow, count: int) -> None:
    new.logprobs.token_ids.ids.extend(range(count))


def _prompt_logprobs(new: worker_pb2.NewRow, count: int) -> None:
    new.prompt_logprobs.top_n = count
    new.prompt_logprobs_start = 1


def _beam(new: worker_pb2.NewRow, count: int) -> None:
    new.num_beam_candidates = count


def _nothing(new: worker_pb2.NewRow, count: int) -> None:
    pass


WISHES = (
    _bad_words,
    _stops,
    _bias,
    _allowed,
    _logprobs,
    _logprobs_of,
    _prompt_logprobs,
    _beam,
    _nothing,
)


def story(folder: Path, warm: bool, **changes: object) -> dict[str, Any]:
    """Loads, warm or not, and serves."""
    told: list[str] = []
    watches: list[CompileWatch] = []

    def loader(command: worker_pb2.Initialize) -> tuple[StepExecutor[CudaBackend], worker_pb2.Ready]:
        if warm:
            platform = CudaPlatform(WorkerConfig(), HostDevice(MEMORY))
            return load(command, platform, lambda what, fraction: told.append(what))
        watches.append(CompileWatch())
        watches[0].begin()
        watches[0].serving()
        return load_on(HostDevice(MEMORY), command)

    with offline() as launched:
        driver = Driver(folder, budget=64, record=False, loader=loader, **(SIZES | changes))
        at_start = launched.copy()
        runner: Any = driver.runner
        rows_in_use = int((runner.rows.num_tokens > 0).sum())
        serve(driver)
        sample(runner)
        swap(runner)
    return {
        "at_start": at_start,
        "late": launched[len(at_start) :],
        "watched": sum(len(watch.late) for watch in watches),
        "told": list(dict.fromkeys(told)),
        "graphs": runner.backend.graphs._sizes,
        "rows_in_use": rows_in_use,
        "num_blocks": driver.ready.num_blocks,
        "max_model_len": driver.ready.model.max_model_len,
        "prefill_us_per_token": driver.ready.prefill_us_per_token,
    }


def main() -> None:
    """See above."""
    logging.disable()
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint("llama", folder, num_hidden_layers=1, max_position_embeddings=1 << 16)
        stories = {
            "cold": story(folder, False),  # the first: Triton reads a kernel once in a process
            "graphs": story(folder, True, num_blocks=0, gpu_memory_utilization=0.9),
            "eager": story(folder, True, enforce_eager=True),
            "adapters": story(folder, True, enforce_eager=True, max_loras=2),
        }
        experts = folder / "experts"
        experts.mkdir()
        make_checkpoint("deepseek_v3", experts, num_hidden_layers=2, max_position_embeddings=1 << 16)
        stories["experts"] = story(experts, True)
        stories["adapted experts"] = story(experts, True, enforce_eager=True, max_loras=2)
    json.dump(stories, sys.stdout)


if __name__ == "__main__":
    main()
