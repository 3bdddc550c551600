"""What the units of a GPU would have to do for our kernels, predicted from their machine code. Needs no GPU.

    python -m benchmarks.gpu_cost                       # what decides a step's time, on an H100 and an H200
    python -m benchmarks.gpu_cost --cards A100,L4       # on others
    python -m benchmarks.gpu_cost --tiles               # attention's tile sizes beside the launcher's choice

A prediction (kernels/triton/cost.py): of an iteration of the main loop, how many cycles each unit of a
processor is busy, and which share of the time memory or the matrix units would be. FLOP per cycle of a
processor compares variants of one kernel. Memory is the card's; tiles that several programs read one after
the other come out of its cache, so for prompts the column says too much. Its error is unknown until a card
has measured.
"""

import argparse
import os
from collections.abc import Iterator
from functools import partial
from unittest import mock

from benchmarks.gpu_compile import launches
from benchmarks.gpu_launches import Launch, attention
from benchmarks.gpu_shapes import BF16, LLAMA_8B
from kernels.triton.attention.attention_sizes import TileSizes, tile_sizes
from kernels.triton.capabilities import CAPABILITIES
from kernels.triton.cost import CARDS, Card, Prediction, predict

LAUNCHES = (
    "attention bf16 32/8 x 128",
    "head bf16 128256 x 4096, 1 rows",
    "head bf16 128256 x 4096, 256 rows",
    "product bf16 down, 1 tokens",
    "product bf16 down, 512 tokens",
    "experts bf16 Qwen3-30B, 1 tokens",
    "experts bf16 Qwen3-30B, 4096 tokens",
)
"""Of Llama-3-8B's shape, and of Qwen3-30B-A3B's experts: gate and up, then down."""
SIZES = [(64, 32, 4, 3), (64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 32, 8, 3)]
"""Rows, tile, warps, stages of attention's variants."""


def predictions(name: str, launch: Launch, card: Card) -> Iterator[tuple[str, Prediction]]:
    """Yields what each kernel with a loop over matrices would need on a card."""
    from kernels.triton.compile_check import compiling

    with compiling(card.capability, machine_code=True) as compiled:
        launch()
    for one in compiled:
        if one.work is not None and one.work.flops and one.programs:
            yield f"{one.name.strip('_')} of {name}", predict(one.work, one.warps, one.programs, card)


def tile_launches(card: Card) -> Iterator[tuple[str, Launch]]:
    """Yields attention by tile sizes; those that the launcher chooses first."""
    capability = CAPABILITIES[card.capability]
    group, dim = LLAMA_8B.query // LLAMA_8B.kv, LLAMA_8B.dim
    own = tile_sizes(group, dim, BF16, capability=capability)
    variants = [TileSizes(*sizes) for sizes in SIZES]
    for sizes in [own, *(other for other in variants if other != own)]:
        words = f"attention, {sizes.rows} x {sizes.tile}, {sizes.warps} warps, {sizes.stages} stages"
        launch = partial(_with_sizes, sizes, partial(attention, LLAMA_8B, BF16))
        yield words + (" (chosen)" if sizes == own else ""), launch


def _with_sizes(sizes: TileSizes, launch: Launch) -> None:
    with mock.patch("kernels.triton.attention.paged_attention.tile_sizes", lambda *_, **__: sizes):
        launch()


def row(name: str, card: str, found: Prediction) -> str:
    """Of the table, in Markdown."""
    units = " | ".join(f"{cycles:.0f}" for cycles in found.units.values())
    shares = f"{found.share('memory'):.0%} | {found.share('matrix'):.0%}"
    rate = f"{found.cycles:.0f} | {found.flops / found.cycles:.0f}"
    return f"| {name} | {card} | {units} | {rate} | {found.limit} | {shares} |"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cards", default="H100,H200", help=f"of {', '.join(CARDS)}")
    parser.add_argument("--tiles", action="store_true", help="attention by tile sizes")
    options = parser.parse_args()
    names = options.cards.split(",")
    if unknown := [name for name in names if name not in CARDS]:
        parser.error(f"--cards: {unknown[0]} is none of {', '.join(CARDS)}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.exit(1, "TRITON_INTERPRET=1 is set: Triton interprets and does not compile\n")
    columns = "issue | special | matrix | shared | memory | cycles | FLOP per cycle | limit | of memory"
    print(f"| kernel | card | {columns} | of matrix |")
    print("| --- | --- " + "| ---: " * 7 + "| --- | ---: | ---: |")
    for card in names:
        known = dict(launches())
        chosen = tile_launches(CARDS[card]) if options.tiles else ((name, known[name]) for name in LAUNCHES)
        for name, launch in chosen:
            for kernel, found in predictions(name, launch, CARDS[card]):
                print(row(kernel, card, found), flush=True)


if __name__ == "__main__":
    main()
