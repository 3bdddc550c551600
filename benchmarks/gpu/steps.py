"""How long steps take in the worker alone, and what the device could do. Needs CUDA.

    python -m benchmarks.gpu.steps --json steps.json
    python -m benchmarks.gpu.steps --models experts,latents --json steps.json
    python -m benchmarks.gpu.steps --device cpu --models tiny --prompts 24 --contexts 16 --batches 1,3 \\
        --steps 6 --json steps.json                   # figures of no use: to try this out

Prompts of some lengths alone, in one step each. Then, for each batch and context: rows are brought to the
context by prefill, and decode from there as the engine core has it, the next step launched before the last
one's tokens are known. A step's time is the median of the times between results. First the device's
ceilings are measured: bytes per second of a large copy, FLOP per second of a large product in bfloat16.

In the table a decoding step stands beside the time in which the bytes that it must read come from memory, a
prompt beside the rate of the product. Models are those of benchmarks/gpu/models.py, each in a process of its
own, so that the device's memory is free again behind it. Weights are random, keys and values are what the
model makes of random tokens.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import repeat
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import SHAPES, Shape
from benchmarks.options import make_parser
from benchmarks.steps.plans import new_row, plan, removal
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from worker.loop import StepRunner

BUDGET = 8192
"""Tokens of a step."""
BLOCK_SIZE = 64
STEPS = 48
SETTLING = 16
"""Steps that do not count."""
REPEATS = 5


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
        for each in plans:
            self._runner.launch(each)
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
        self._runner.launch(removal(range(self._batch)))
        self._runner.finish()

    def _plan(self, rows: range, start: int, count: int, new: bool = False) -> worker_pb2.StepPlan:
        return plan(rows, start, count, [self._new_row(row) for row in rows] if new else [])

    def _new_row(self, row: int) -> worker_pb2.NewRow:
        ids = np.random.default_rng(row).integers(16, self._vocab_size, self._context).tolist()
        return new_row(row, ids, self._context, range(row * self._blocks, (row + 1) * self._blocks))


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
    calls = lambda: target.copy_(source), lambda: square @ square
    copy, product = (min(repeat(call, number=1)) for call in calls)
    return 2 * source.nbytes / copy, 2 * 256**3 / product


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


def step_lines(model: str, figures: dict[str, Any]) -> Iterator[str]:
    """Rows of the table: steps beside what the device could do."""
    for row in figures["decode"]:
        what = f"decode, {row['batch']} x {row['context']}"
        if "missing" in row:
            yield f"| {model} | {what} | - | {row['missing']} | |"
            continue
        least, ours = 1e3 * row["bytes"] / figures["bandwidth"], f"{row['tokens_per_s']:.0f} tokens/s"
        yield (
            f"| {model} | {what} | {row['ms']:.2f} ms, {ours} | {least:.2f} ms: its bytes"
            f" | {row['ms'] / least:.2f} |"
        )
    for row in figures["prefill"]:
        rate, most = row["flops_per_s"] / 1e12, figures["flops_per_s"] / 1e12
        ours, best = f"{rate:.1f} TFLOP/s, {row['ms']:.1f} ms", f"{most:.1f} TFLOP/s: a product"
        yield f"| {model} | prompt of {row['tokens']} | {ours} | {best} | {rate / most:.2f} |"


def table(figures: dict[str, Any]) -> Iterator[str]:
    """The table in Markdown, and a line for each model without figures."""
    yield from ("| model | step | ours | beside | ratio |", "| --- | --- | --- | --- | ---: |")
    for model, steps in figures["models"].items():
        yield from step_lines(model, steps)
    yield from (f"- {line}" for line in figures["missing"])


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one model. Weights are drawn on the device."""
    prompts, batches, contexts = (
        [int(number) for number in text.split(",")]
        for text in (options.prompts, options.batches, options.contexts)
    )
    shape, figures = SHAPES[name], device_facts(options.device) | {"prefill": [], "decode": []}
    longest = max(*prompts, max(contexts) + options.steps) + 2
    with TemporaryDirectory() as folder:
        shape.write(Path(folder))
        runner, num_blocks = load_runner(Path(folder), options.device, max(batches), longest)
    for kind, row in measure_all(runner, num_blocks, shape, prompts, batches, contexts, options.steps):
        figures[kind].append(row)
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--models", default="8B,0.5B,1.5B,experts,latents", help="default: %(default)s")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompts", default="1024,4096,8000", help="default: %(default)s")
    parser.add_argument("--batches", default="1,32,256", help="default: %(default)s")
    parser.add_argument("--contexts", default="1024,4096", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=480, help="begin no model after that long")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    if unknown := set(options.models.split(",")) - set(SHAPES):
        sys.exit(f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: there is nothing to measure here, except with --device cpu")
    figures: dict[str, Any] = {"models": {}, "missing": []}
    began, spawn = time.monotonic(), get_context("spawn")
    for name in options.models.split(","):
        if time.monotonic() - began > options.seconds:
            figures["missing"].append(f"{name}: the time was over")
            continue
        with ProcessPoolExecutor(1, mp_context=spawn) as process:  # whose end frees the device's memory
            try:
                figures["models"][name] = process.submit(measure_model, name, options).result()
            except Exception as why:  # one model that fails costs no other's figures
                figures["missing"].append(f"{name}: {type(why).__name__}: {why}".splitlines()[0][:200])
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(*table(figures), sep="\n")


if __name__ == "__main__":
    main()
