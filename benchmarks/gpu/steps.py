"""A part of benchmarks/gpu/serve.py: how long steps take in the worker alone, and what the device could do.

    python -m benchmarks.gpu.steps FOLDER --shape 8B --json steps.json

Prompts of some lengths alone, in one step each. Then, for each batch and context: rows are brought to the
context by prefill, and decode from there as the engine core has it, the next step launched before the last
one's tokens are known. A step's time is the median of the times between results. First the device's
ceilings are measured: bytes per second of a large copy, FLOP per second of a large product in bfloat16.

Weights are random, keys and values are what the model makes of random tokens.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import SHAPES, Shape
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from worker.loop import StepRunner

BUDGET = 8192
"""Tokens of a step."""
BLOCK_SIZE = 64
STEPS = 48
SETTLING = 16
"""Steps that do not count."""
REPEATS = 5
GREEDY = generation_pb2.SamplingParams(temperature=0, top_p=1, typical_p=1, repetition_penalty=1)


def load_runner(folder: Path, device: str, batch: int, context: int) -> tuple[StepRunner, int]:
    """With graphs captured and everything compiled; and its number of KV blocks."""
    initialize = worker_pb2.Initialize(
        model_path=str(folder),
        device=device,
        load_format="dummy",
        max_num_seqs=batch,
        max_num_batched_tokens=BUDGET,
        max_model_len=context,
        block_size=BLOCK_SIZE,
        gpu_memory_utilization=0.9,
    )

    from worker.load import load

    if device == "cuda":
        from worker.platforms.cuda import CudaPlatform

        on_device, ready = load(initialize, CudaPlatform(WorkerConfig()))
        return on_device, ready.num_blocks
    from worker.platforms.cpu import CpuPlatform

    on_cpu, ready = load(initialize, CpuPlatform(WorkerConfig(threads=1)))
    return on_cpu, ready.num_blocks


class Steps:
    """Plans for rows 0 .. batch - 1, each with blocks of its own."""

    def __init__(self, runner: StepRunner, vocab_size: int, batch: int, context: int, more: int) -> None:
        """more: tokens beyond the context that rows have room for."""
        self._runner, self._batch, self._context = runner, batch, context
        self._vocab_size = vocab_size
        self._blocks = -(-(context + more) // BLOCK_SIZE)

    def prefill(self) -> None:
        """All rows, as many to a step as fit, and waits for the last."""
        most = max(1, BUDGET // self._context)
        plans = [
            self._plan(range(first, min(self._batch, first + most)), 0, self._context, new=True)
            for first in range(0, self._batch, most)
        ]
        for plan in plans:
            self._runner.launch(plan)
        for _ in plans:
            self._runner.finish()

    def decode(self, steps: int) -> list[float]:
        """When the results came: one step is always launched behind the one that is waited for."""
        arrivals = []
        self._runner.launch(self._plan(range(self._batch), self._context, 1))
        for step in range(1, steps):
            self._runner.launch(self._plan(range(self._batch), self._context + step, 1))
            self._runner.finish()
            arrivals.append(time.perf_counter())
        self._runner.finish()
        return [*arrivals, time.perf_counter()]

    def remove(self) -> None:
        """All rows."""
        self._runner.launch(worker_pb2.StepPlan(removed_rows=pack_u32(range(self._batch))))
        self._runner.finish()

    def _plan(self, rows: range, start: int, count: int, new: bool = False) -> worker_pb2.StepPlan:
        return worker_pb2.StepPlan(
            new_rows=[self._new_row(row) for row in rows] if new else [],
            rows=pack_u32(rows),
            starts=pack_u32([start] * len(rows)),
            counts=pack_u32([count] * len(rows)),
            sample_rows=pack_u32(rows),
            sample_sources=pack_u32(range(len(rows))),
        )

    def _new_row(self, row: int) -> worker_pb2.NewRow:
        ids = np.random.default_rng(row).integers(16, self._vocab_size, self._context)
        return worker_pb2.NewRow(
            row=row,
            prompt_len=self._context,
            token_ids=pack_u32(ids.tolist()),
            blocks=pack_u32(range(row * self._blocks, (row + 1) * self._blocks)),
            sampling=GREEDY,
        )


def measure_prefill(runner: StepRunner, shape: Shape, tokens: int) -> dict[str, Any]:
    """A prompt alone. The first one does not count."""
    times = []
    for _ in range(REPEATS + 1):
        steps = Steps(runner, shape.vocab, 1, tokens, 1)
        began = time.perf_counter()
        steps.prefill()
        times.append(time.perf_counter() - began)
        steps.remove()
    seconds = statistics.median(times[1:])
    return {"tokens": tokens, "ms": 1e3 * seconds, "flops_per_s": shape.prefill_flops(tokens) / seconds}


def measure_decode(runner: StepRunner, shape: Shape, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Rows of one context, which grows by a token a step."""
    rows = Steps(runner, shape.vocab, batch, context, steps + 1)
    rows.prefill()
    arrivals = rows.decode(steps)
    rows.remove()
    gaps = np.diff(arrivals[min(SETTLING, steps // 2) :])
    seconds = float(np.median(gaps))
    num_bytes = shape.decode_bytes(batch, context + steps * 0.75)
    return {
        "batch": batch,
        "context": context,
        "ms": 1e3 * seconds,
        "p90_ms": 1e3 * float(np.quantile(gaps, 0.9)),
        "bytes": num_bytes,
        "flops": shape.decode_flops(batch),
        "bytes_per_s": num_bytes / seconds,
        "tokens_per_s": batch / seconds,
    }


def blocks_needed(batch: int, context: int, steps: int) -> int:
    """Of rows that decode so many steps."""
    return batch * -(-(context + steps + 1) // BLOCK_SIZE)


def measure_all(
    runner: StepRunner,
    num_blocks: int,
    shape: Shape,
    prompts: Sequence[int],
    batches: Sequence[int],
    contexts: Sequence[int],
    steps: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """("prefill", row) and ("decode", row); where the KV cache is too small, a row that says so."""
    for tokens in prompts:
        yield "prefill", measure_prefill(runner, shape, tokens)
    for batch in batches:
        for context in contexts:
            needed = blocks_needed(batch, context, steps)
            if needed > num_blocks:
                missing = f"{needed} KV blocks are needed, {num_blocks} are there"
                yield "decode", {"batch": batch, "context": context, "missing": missing}
            else:
                yield "decode", measure_decode(runner, shape, batch, context, steps)


def cpu_ceilings() -> tuple[float, float]:
    """Bytes per second of a copy and FLOP per second of a float32 product, for trying this out."""
    source = torch.randn(1 << 20)
    target, square = torch.empty_like(source), torch.randn(256, 256)
    return 2 * source.nbytes / _best(lambda: target.copy_(source)), 2 * 256**3 / _best(
        lambda: square @ square
    )


def _best(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def device_facts(device: str) -> dict[str, Any]:
    """Its name and its ceilings."""
    if device == "cpu":
        bandwidth, rate = cpu_ceilings()
        name = "CPU"
    else:
        from benchmarks.gpu.kernels import ceilings

        with torch.inference_mode():
            bandwidth, rate = ceilings(torch.device(device))
        torch.cuda.empty_cache()
        name = torch.cuda.get_device_name()
    return {"device": name, "torch": torch.__version__, "bandwidth": bandwidth, "flops_per_s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with config.json")
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompts", default="1024,4096,8000", help="default: %(default)s")
    parser.add_argument("--batches", default="1,32,256", help="default: %(default)s")
    parser.add_argument("--contexts", default="1024,4096", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    prompts, batches, contexts = (
        [int(number) for number in text.split(",")]
        for text in (options.prompts, options.batches, options.contexts)
    )
    shape, figures = SHAPES[options.shape], device_facts(options.device)
    longest = max(*prompts, max(contexts) + options.steps) + 2
    runner, num_blocks = load_runner(options.folder, options.device, max(batches), longest)
    figures |= {"prefill": [], "decode": []}
    for kind, row in measure_all(runner, num_blocks, shape, prompts, batches, contexts, options.steps):
        figures[kind].append(row)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")  # what is there stays, if time ends


if __name__ == "__main__":
    main()
