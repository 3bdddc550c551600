"""Measures what sampling costs: medians of Sampler.sample by rows, vocabulary and parameters.

    python -m benchmarks.sampler [--threads N] [--by torch|kernels] [--flat] [--cold] [--json FILE]

Logits fall like a power of the rank, with noise, or are all about the same (--flat); every row has 200
prompt tokens and a few of output. Each call samples anew from the same logits; copying them into place is
not counted. On one thread its CPU time counts, on more the time on the clock, which needs a quiet machine.
--cold: between two calls memory is read, as a step reads weights, so that no cache holds what a call needs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from kernels.cpu.sampling.api import SamplingKernels, sampling_kernels  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from pagewire.v1 import generation_pb2  # noqa: E402
from worker.sampling.sampler import Sampler  # noqa: E402

ROWS = (1, 32)
VOCABULARIES = (1024, 32_000, 152_000)
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "typical_p": {"temperature": 0.8, "typical_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_k, top_p, penalties": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
    },
}
PROMPT = list(range(200))
WEIGHTS = 128 << 20
"""Bytes that are read between two calls: more than caches hold."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1, help="default 1")
    parser.add_argument("--by", choices=("torch", "kernels"), default="kernels")
    parser.add_argument("--flat", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = sampling_kernels(options.threads) if options.by == "kernels" else None
    weights = torch.ones(WEIGHTS // 4) if options.cold else None
    figures = []
    print(f"{'rows':>4} {'vocabulary':>10} " + " ".join(f"{name:>23}" for name in SAMPLING) + "   (us)")
    for vocab_size in VOCABULARIES:
        for rows in ROWS:
            logits = make_logits(rows, vocab_size, options.flat)
            clock = time.thread_time if options.threads == 1 else time.perf_counter
            times = {
                name: measure(logits, sampling, kernels, clock, weights)
                for name, sampling in SAMPLING.items()
            }
            figures.append({"rows": rows, "vocabulary": vocab_size, "microseconds": times})
            print(f"{rows:>4} {vocab_size:>10} " + " ".join(f"{value:>23.0f}" for value in times.values()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def make_logits(rows: int, vocab_size: int, flat: bool) -> torch.Tensor:
    """[rows, vocab_size] float32."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rows, vocab_size, generator=generator)
    if flat:
        return 0.1 * noise
    ranks = torch.rand(rows, vocab_size, generator=generator).argsort(-1)
    return 5 - 1.3 * (ranks + 3.0).log() + 0.3 * noise


def measure(
    logits: torch.Tensor,
    sampling: dict[str, float],
    kernels: SamplingKernels | None,
    clock: Callable[[], float],
    weights: torch.Tensor | None,
) -> float:
    """Median microseconds of a call. weights: what is read before each; None: nothing."""
    rows, vocab_size = logits.shape
    sampler = Sampler(rows, vocab_size, torch.device("cpu"), kernels)
    params = generation_pb2.SamplingParams(**sampling, seed=1)  # type: ignore[arg-type]
    for row in range(rows):
        sampler.add_row(
            row, worker_pb2.NewRow(row=row, sampling=params, sequence_index=row), PROMPT, [1, 2, 3]
        )
    batch, times = torch.empty_like(logits), []
    for _ in range(max(9, min(300 if weights is None else 60, 20_000_000 // logits.numel()))):
        if weights is not None:
            weights.sum()
        batch.copy_(logits)
        start = clock()
        sampler.sample(batch, list(range(rows)))
        times.append(clock() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
