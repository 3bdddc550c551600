"""Measures what log-probabilities cost the worker: medians over steps, by rows, vocabulary and candidates.

    python -m benchmarks.logprobs [--threads N] [--json FILE]

`sampled` is all that a step does more when every row wants them: a copy of the logits before the sampler
changes them, the scores, and the columns of the message. `prompt` is the same for that many positions of a
prompt, once their logits are there. Microseconds for all rows together.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from worker.sampling.batch import PIECE
from worker.sampling.logprobs.columns import to_columns
from worker.sampling.logprobs.requests import LogprobCandidates
from worker.sampling.logprobs.scores import SampledScores, score

SIZES = ((1, 1024), (32, 1024), (1, 32_000), (32, 32_000), (1, 152_000), (32, 152_000))
WISHES = {
    "chosen": LogprobCandidates(),
    "top 5": LogprobCandidates(top_n=5),
    "top 20": LogprobCandidates(top_n=20),
    "5 ids": LogprobCandidates(token_ids=(1, 20, 300, 400, 500)),
    "all": LogprobCandidates(all=True),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures = []
    print("| rows | vocabulary | | " + " | ".join(WISHES) + " |")
    print("| ---: | ---: | --- |" + " ---: |" * len(WISHES))
    for rows, vocab_size in SIZES:
        for name, kind in (("sampled", sampled), ("prompt", prompt)):
            times = {wish: measure(kind, rows, vocab_size, WISHES[wish]) for wish in WISHES}
            figures.append({"rows": rows, "vocabulary": vocab_size, "of": name, "microseconds": times})
            cells = " | ".join(f"{value:,.0f}" for value in times.values())
            print(f"| {rows} | {vocab_size:,} | {name} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(
    kind: Callable[[torch.Tensor, torch.Tensor, LogprobCandidates], object],
    rows: int,
    vocab_size: int,
    wish: LogprobCandidates,
) -> float:
    """Median microseconds."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab_size, generator=generator) * 3
    tokens = logits.argmax(-1)
    times = []
    with torch.inference_mode():
        for _ in range(max(7, min(200, 4_000_000 // logits.numel()))):
            began = time.perf_counter()
            kind(logits, tokens, wish)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def sampled(logits: torch.Tensor, tokens: torch.Tensor, wish: LogprobCandidates) -> object:
    """As Sampler.sample() calls it, piece by piece."""
    rows = list(range(len(logits)))
    scores = SampledScores(dict.fromkeys(rows, wish))
    size = max(1, PIECE // logits.shape[1])
    for start in range(0, len(rows), size):
        piece = slice(start, start + size)
        kept = scores.keep(logits[piece], rows[piece])
        assert kept is not None
        scores.add(kept, rows[piece], tokens[piece])
    return scores.columns()


def prompt(logits: torch.Tensor, tokens: torch.Tensor, wish: LogprobCandidates) -> object:
    """As worker.sampling.logprobs.scores does with the logits of a piece."""
    size = max(1, PIECE // logits.shape[1])
    tables = [
        score(
            logits[start : start + size],
            tokens[start : start + size],
            [wish] * len(tokens[start : start + size]),
        ).table()
        for start in range(0, len(tokens), size)
    ]
    return to_columns(tables)


if __name__ == "__main__":
    main()
