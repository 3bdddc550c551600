"""Attention and products by expert, by tile sizes: a part of benchmarks.gpu.first_hour.

    python -m benchmarks.gpu.first_hour.tile_variants --json tiles.json

Shapes are Llama-3-8B's for attention and Qwen3-30B-A3B's for experts. Each variant is what a launcher could
have chosen in place of its own sizes (kernels/triton/attention/attention_sizes.py, experts/tile_sizes.py),
and is timed as benchmarks/gpu/kernels.py times. What it computes is compared with the launcher's own choice:
of attention bits may differ, values only by rounding; of products no bit may. A variant that the device
cannot run is in the file with its words.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.attention_works import make_inputs, our_call
from benchmarks.gpu.family_works import EXPERTS, HIDDEN, TOP_K, WIDTH
from benchmarks.gpu.kernels import seconds
from benchmarks.gpu.works import Call, Setting
from kernels.triton.attention.attention_sizes import TileSizes, tile_sizes
from kernels.triton.capabilities import capability_of
from kernels.triton.experts.dispatch import sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.matmul.ranges import LinearSizes

HEADS, SMALL_HEADS = (32, 8, 128), (4, 1, 128)
"""Query heads, KV heads, head size; the second for the interpreter."""
VARIANTS = [
    TileSizes(64, 64, 4, 3),
    TileSizes(64, 64, 4, 2),
    TileSizes(128, 64, 8, 3),
    TileSizes(128, 64, 8, 2),
    TileSizes(128, 128, 8, 2),
    TileSizes(64, 128, 4, 2),
    TileSizes(64, 32, 4, 3),
]
"""Each for decoding and for prompts: both must have the same sizes. Another tile is another arithmetic."""
WORKS = {
    "prefill, 1 x 1024": (1, 1024, True),
    "prefill, 1 x 8192": (1, 8192, True),
    "decode, 1 x 4096": (1, 4096, False),
    "decode, 32 x 1024": (32, 1024, False),
    "decode, 256 x 1024": (256, 1024, False),
}
"""Rows, length, whether it is a prompt."""


PAIRS = (1, 32, 512, 4096)
"""Tokens of products by expert."""
PRODUCT_VARIANTS = [
    LinearSizes(64, 16, 64, 4, 4, True),
    LinearSizes(64, 16, 64, 4, 4, False),
    LinearSizes(64, 32, 64, 4, 4, False),
    LinearSizes(64, 64, 64, 4, 4, False),
    LinearSizes(128, 64, 64, 8, 3, False),
    LinearSizes(128, 64, 32, 8, 4, False),
    LinearSizes(128, 128, 64, 8, 3, False),
]


@dataclass(frozen=True)
class Variant:
    """What one launch would be."""

    sizes: str
    shipped: bool
    call: Call


def attention_variants(setting: Setting, rows: int, length: int, prompt: bool) -> Iterator[Variant]:
    """The launcher's choice first."""
    heads = HEADS if setting.device.type == "cuda" else SMALL_HEADS
    call = our_call(make_inputs(setting, heads, rows, length, length if prompt else 1), False)
    group, dim = HEADS[0] // HEADS[1], HEADS[2]
    own = tile_sizes(group, dim, setting.dtype, capability=capability_of(setting.device))

    def with_sizes(sizes: TileSizes) -> Any:
        with mock.patch("kernels.triton.attention.paged_attention.tile_sizes", lambda *_: sizes):
            return call()

    for sizes in [own, *(each for each in VARIANTS if each != own)]:
        name = f"{sizes.rows} x {sizes.tile}, {sizes.warps} warps, {sizes.stages} stages"
        yield Variant(name, sizes == own, partial(with_sizes, sizes))


def product_variants(setting: Setting, tokens: int) -> Iterator[Variant]:
    """Of gate and up; the launcher's choice first."""
    count, width, hidden = setting.size(EXPERTS, 16), setting.size(WIDTH), setting.size(HIDDEN)
    x, weight = setting.random(tokens, hidden), setting.random(count, 2 * width, hidden)
    chosen = torch.rand(tokens, count, device=setting.device).topk(TOP_K, -1).indices

    def with_sizes(sizes: LinearSizes | None) -> torch.Tensor:
        order = sort_by_expert(chosen, count, setting.dtype, 0 if sizes is None else sizes.tokens)
        return grouped_linear(x, weight, None, order, order.tokens, sizes)

    yield Variant("as chosen", True, partial(with_sizes, None))
    for sizes in PRODUCT_VARIANTS:
        split = ", a range each" if sizes.splits else ""
        name = f"{sizes.features} x {sizes.tokens}, {sizes.warps} warps, {sizes.stages} stages{split}"
        yield Variant(name, False, partial(with_sizes, sizes))


def seconds_on_the_host(call: Call) -> float:
    """Of one call in the interpreter: no figure of anything but this."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(setting: Setting, name: str, variants: Iterable[Variant]) -> Iterator[dict[str, Any]]:
    """A row for each variant. The first one is what the others are compared with."""
    expected = None
    for variant in variants:
        row: dict[str, Any] = {"work": name, "shipped": variant.shipped, "sizes": variant.sizes}
        try:
            result = variant.call().float()
            expected = result if expected is None else expected
            on_device = setting.device.type == "cuda"
            row["us"] = 1e6 * (seconds([variant.call]) if on_device else seconds_on_the_host(variant.call))
            row["error"] = float((result - expected).norm() / expected.norm())
        except Exception as why:  # too much shared memory, as Triton or the driver says it
            row["refused"] = f"{type(why).__name__}: {why}".splitlines()[0][:200]
        yield row


def works(setting: Setting) -> Iterator[tuple[str, Callable[[], Iterable[Variant]]]]:
    """By name; each makes its inputs when it is called."""
    for name, (rows, length, prompt) in WORKS.items():
        if setting.device.type == "cuda" or rows * length <= 4096:  # else the interpreter takes a minute
            sizes = setting.size(rows), setting.size(length, 70)
            yield name, partial(attention_variants, setting, *sizes, prompt)
    for tokens in PAIRS:
        yield f"experts, {tokens} tokens", partial(product_variants, setting, setting.size(tokens))


def line(row: dict[str, Any], shipped_us: float | None) -> str:
    """Of the report's table, in Markdown."""
    sizes = row["sizes"] + (", shipped" if row["shipped"] else "")
    if "refused" in row:
        return f"| {row['work']} | {sizes} | {row['refused']} | | |"
    ratio = f"{row['us'] / shipped_us:.2f}" if shipped_us else ""
    return f"| {row['work']} | {sizes} | {row['us']:.1f} | {ratio} | {row['error']:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    known = {row["work"] for row in rows}
    device = torch.device(options.device)
    setting = Setting(device) if device.type == "cuda" else Setting(device, torch.float16, 64)
    torch.manual_seed(0)
    with torch.inference_mode():
        for name, make in works(setting):
            if name in known:
                continue
            found = list(measure(setting, name, make()))
            shipped = next((row.get("us") for row in found if row["shipped"]), None)
            print(*(line(row, shipped) for row in found), sep="\n", flush=True)
            rows += found
            options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
