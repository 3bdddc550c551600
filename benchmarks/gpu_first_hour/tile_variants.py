"""Attention by tile sizes: a part of benchmarks.gpu_first_hour.

    python -m benchmarks.gpu_first_hour.tile_variants --json tiles.json

The shape is Llama-3-8B's. Each variant is what a launcher could have chosen in place of its own sizes
(kernels/triton/attention/attention_sizes.py), and is timed as benchmarks/gpu_kernels.py times. What it
computes is compared with the launcher's own choice: bits may differ, values only by rounding. A variant that
the device cannot run is in the file with its words.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu_attention_works import make_inputs, our_call
from benchmarks.gpu_kernels import seconds
from benchmarks.gpu_works import Call, Setting
from kernels.triton.attention.attention_sizes import TileSizes, tile_sizes
from kernels.triton.capabilities import capability_of

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


def variants(setting: Setting) -> tuple[TileSizes, list[TileSizes]]:
    """Returns the launcher's choice, and the others."""
    group, dim = HEADS[0] // HEADS[1], HEADS[2]
    own = tile_sizes(group, dim, setting.dtype, capability=capability_of(setting.device))
    return own, [sizes for sizes in VARIANTS if sizes != own]


def seconds_on_the_host(call: Call) -> float:
    """Of one call in the interpreter: no figure of anything but this."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(setting: Setting, name: str, rows: int, length: int, prompt: bool) -> Iterator[dict[str, Any]]:
    """A row for each variant, the launcher's choice first."""
    heads = HEADS if setting.device.type == "cuda" else SMALL_HEADS
    call = our_call(make_inputs(setting, heads, rows, length, length if prompt else 1), False)
    own, others = variants(setting)
    expected = call().float()
    for sizes in [own, *others]:
        row: dict[str, Any] = {"work": name, "shipped": sizes == own, **asdict(sizes)}
        with mock.patch("kernels.triton.attention.paged_attention.tile_sizes", lambda *_, s=sizes: s):
            try:
                result = call().float()
                on_device = setting.device.type == "cuda"
                row["us"] = 1e6 * (seconds([call]) if on_device else seconds_on_the_host(call))
                row["error"] = float((result - expected).norm() / expected.norm())
            except Exception as why:  # too much shared memory, as Triton or the driver says it
                row["refused"] = f"{type(why).__name__}: {why}".splitlines()[0][:200]
        yield row


def line(row: dict[str, Any], shipped_us: float | None) -> str:
    """Of the report's table, in Markdown."""
    sizes = f"{row['rows']} x {row['tile']}, {row['warps']} warps, {row['stages']} stages"
    sizes += ", shipped" if row["shipped"] else ""
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
        for name, (rows_of_it, length, prompt) in WORKS.items():
            if name in known:
                continue
            if device.type == "cpu" and rows_of_it * length > 4096:
                continue  # the interpreter would take a minute
            found = list(measure(setting, name, setting.size(rows_of_it), setting.size(length, 70), prompt))
            shipped = next((row.get("us") for row in found if row["shipped"]), None)
            print(*(line(row, shipped) for row in found), sep="\n", flush=True)
            rows += found
            options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
