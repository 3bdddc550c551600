"""How evenly attention's list of work spreads a step over a GPU's programs, predicted. Needs no GPU.

    python -m benchmarks.gpu_balance                # on an H200; Llama-3-8B's heads
    python -m benchmarks.gpu_balance --card A100

For each step: microseconds of attention in one layer if a program had each piece of a row with all of its
context, and with the list (kernels.triton.attention.work_list), and what no order could beat: all chunks
spread evenly. Programs take items in the list's order, each as soon as it is free. An iteration takes what
the cost model predicts (kernels/triton/cost.py), also where few programs have a processor for themselves,
which are faster in truth; results of chunks go through memory at the rate of the data sheet. These are
predictions of counting: no card has measured.
"""

import argparse
import heapq
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu_cost import predictions
from benchmarks.gpu_launches import attention_launches
from benchmarks.gpu_shapes import LLAMA_8B
from kernels.triton.attention.attention_sizes import (
    CHUNK,
    MOST_PART_BYTES,
    PROGRAMS_PER_PROCESSOR,
    tile_sizes,
)
from kernels.triton.attention.work_list import WorkShape, work_list_reference
from kernels.triton.capabilities import CAPABILITIES
from kernels.triton.cost import CARDS, Card

Rows = list[tuple[int, int]]
STEPS: dict[str, Rows] = {
    "1 row of 32k": [(1, 32768)],
    "32 rows of 1k": [(1, 1024)] * 32,
    "a row of 32k among 31 of 1k": [(1, 32768), *[(1, 1024)] * 31],
    "a row of 128k among 255 of 1k": [(1, 131072), *[(1, 1024)] * 255],
    "64 tokens behind 32k, 16 rows of 1k": [*[(1, 1024)] * 16, (64, 32768)],
    "128 tokens behind 32k, 16 rows of 1k": [*[(1, 1024)] * 16, (128, 32768)],
    "256 tokens behind 32k, 16 rows of 1k": [*[(1, 1024)] * 16, (256, 32768)],
    "512 tokens of a prompt, 64 rows of 4k": [*[(1, 4096)] * 64, (512, 512)],
}
"""Tokens of each row, and its context with them. Results of the chunks of 256 tokens have no room."""


@dataclass(frozen=True)
class Costs:
    """Of one layer on a card."""

    programs: int
    chunk_us: float
    part_us: float  # a result of a chunk of one token, of all heads, to memory and back


def costs_of(card: Card) -> Costs:
    """From the machine code of attention's main loop."""
    from kernels.triton.capabilities import assume

    launch = dict(attention_launches())[f"attention bf16 {LLAMA_8B}"]
    (found,) = (p for name, p in predictions("8B", launch, card) if name.startswith("attention"))
    with assume(card.capability):
        tile = sizes(card)[1]
    part_bytes = 2 * 4 * LLAMA_8B.query * (LLAMA_8B.dim + 2)
    programs = PROGRAMS_PER_PROCESSOR * card.processors
    return Costs(
        programs, CHUNK / tile * found.cycles / card.clock / 1000, part_bytes / card.bandwidth / 1000
    )


def sizes(card: Card) -> tuple[int, int]:
    """Returns the tokens of a piece, and of a tile."""
    import torch

    group = LLAMA_8B.query // LLAMA_8B.kv
    chosen = tile_sizes(group, LLAMA_8B.dim, torch.bfloat16, capability=CAPABILITIES[card.capability])
    return chosen.rows // group, chosen.tile


def last_done(items: Sequence[int], programs: int) -> int:
    """Returns when the last item is done, in chunks: each program takes the next one when it is free."""
    free = [0] * programs
    for chunks in items:
        heapq.heappush(free, heapq.heappop(free) + chunks)
    return max(free)


def chunks_of_items(rows: Rows, shape: WorkShape) -> tuple[list[int], int]:
    """Returns how many chunks each item of each KV head has, and how many results of chunks there are, over
    tokens."""
    counts, lengths = map(list, zip(*rows, strict=True))
    items, places = work_list_reference(counts, lengths, shape)
    chunks = [-(-(places[row][1] - split) // splits) for row, _, split, splits in items]
    shared = {row for row, _, _, splits in items if splits > 1}
    return chunks * shape.num_kv, sum(counts[row] * places[row][1] for row in shared)


def line(name: str, rows: Rows, costs: Costs, queries: int) -> str:
    """Of the table, in Markdown."""
    capacity = MOST_PART_BYTES // (4 * LLAMA_8B.query * (LLAMA_8B.dim + 2))
    shape = WorkShape(queries, LLAMA_8B.kv, costs.programs, capacity, 0, CHUNK)
    whole, _ = chunks_of_items(rows, replace(shape, capacity=0))
    shared, results = chunks_of_items(rows, shape)
    alone = last_done(whole, costs.programs) * costs.chunk_us
    listed = last_done(shared, costs.programs) * costs.chunk_us + results * costs.part_us
    least = sum(whole) / costs.programs * costs.chunk_us
    return f"| {name} | {alone:.0f} | {listed:.0f} | {alone / listed:.1f} | {least:.0f} |"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", default="H200", choices=list(CARDS))
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.exit(1, "TRITON_INTERPRET=1 is set: Triton interprets and does not compile\n")
    card = CARDS[options.card]
    costs = costs_of(card)
    print(f"Predicted for {options.card}, us of attention in a layer; {costs.chunk_us:.1f} for a chunk")
    print("| step | a program for each piece | with the list | ratio | at least |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, rows in STEPS.items():
        print(line(name, rows, costs, sizes(card)[0]))


if __name__ == "__main__":
    main()
