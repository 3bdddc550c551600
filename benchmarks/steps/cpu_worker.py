"""A worker on a CPU for benchmarks of its steps: no sockets, no scheduler. Import it before torch."""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.options import make_parser
from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import numpy as np  # noqa: E402

from benchmarks.steps.plans import new_row  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.config import WorkerConfig  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.cpu.precompile import select_instruction_set  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402
from worker.load import load  # noqa: E402
from worker.platforms.cpu import CpuPlatform  # noqa: E402

BLOCK_SIZE = 16
Runner = StepExecutor[CpuBackend]


def model_options(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options of load_model()."""
    parser = make_parser(doc)
    parser.add_argument("model", nargs="?", default="demo", help="a folder; without weights they are random")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="", choices=["", "int8", "int4"])
    parser.add_argument("--kv-cache-dtype", default="", choices=["", "fp8_e4m3"])
    parser.add_argument("--cpu-kernels", default="", metavar="SET")
    return parser


def load_model(
    options: argparse.Namespace, rows: int, blocks: int, budget: int
) -> tuple[Runner, worker_pb2.Ready]:
    """Loads a model with a cache of so many blocks. budget: tokens of a step at most."""
    select_instruction_set(options.cpu_kernels)
    folder = checkpoint_folder(options.model)
    initialize = worker_pb2.Initialize(
        model_path=str(folder),
        device="cpu",
        dtype=options.dtype,
        load_format="auto" if list(folder.glob("*.safetensors")) else "dummy",
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        block_size=BLOCK_SIZE,
        num_blocks=blocks,
    )
    return load(initialize, CpuPlatform(WorkerConfig(threads=options.threads)))


def random_rows(
    vocab_size: int, batch: int, prompt: int, positions: int, shared: int = 0
) -> list[worker_pb2.NewRow]:
    """Prompts of random tokens, greedy. positions: that each row has blocks for. shared: blocks that all rows
    begin with, and their tokens."""
    rng, blocks, common = np.random.default_rng(0), -(-positions // BLOCK_SIZE), shared * BLOCK_SIZE
    prefix = rng.integers(0, vocab_size, common).tolist()
    return [
        new_row(
            row,
            [*prefix, *rng.integers(0, vocab_size, prompt - common).tolist()],
            prompt,
            [*range(shared), *range(row * blocks + shared, (row + 1) * blocks)],
        )
        for row in range(batch)
    ]


@contextmanager
def programs_timed() -> Iterator[list[float]]:
    """Adds up the milliseconds that programs of compiled operations take, in the list's one number."""
    from kernels.cpu.runtime.thread_pool import Team

    spent = [0.0]

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            began = time.perf_counter()
            method(*args)
            spent[0] += 1000 * (time.perf_counter() - began)

        return run

    with patch.multiple(Team, **{name: timed(getattr(Team, name)) for name in ("run", "call", "run_one")}):
        yield spent
