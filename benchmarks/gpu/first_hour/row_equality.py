"""Whether a row's bits depend on its batch mates: a part of benchmarks.gpu.first_hour.

    python -m benchmarks.gpu.first_hour.row_equality --json equality.json
    TRITON_INTERPRET=1 python -m benchmarks.gpu.first_hour.row_equality --device cpu --json equality.json

One row is computed alone and among up to 2047 others, as the first of them and as the last; of a prompt, the
last token is computed with the whole prompt, in pieces, and as one that decodes. What comes out is compared
bit for bit. Sizes with the same bits are a class: one class means that the row has the same bits at every
size. Operations are those that layers call, on shapes of Llama-3-8B and Qwen2.5-0.5B
(benchmarks/gpu/first_hour/probes.py); the whole model is Qwen2.5-0.5B with random weights, through the
worker's executor with its graphs, and what is compared are tokens and the bits of their log-probabilities
(benchmarks/gpu/first_hour/model_probe.py).

What is promised is one class for each probe: the order of every sum is fixed
(kernels/triton/matmul/ranges.py, kernels/triton/attention/paged_attention.py). "By library" is what
--fast-matmul multiplies with, which promises nothing. It measures and does not judge: it exits with 0 in any
case. Figures are in the file after each probe; a probe that is there is not computed again.
"""

import gc
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.first_hour.bit_classes import Probe, classes
from benchmarks.gpu.first_hour.family_probes import family_probes
from benchmarks.gpu.first_hour.model_probe import model_probes
from benchmarks.gpu.first_hour.probes import operation_probes
from benchmarks.gpu.works import Setting
from benchmarks.options import make_parser

SIZES = (1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 257, 300, 512, 1024, 2048)
"""Powers of two, where kernels change, and their neighbours."""


def measure(makers: Iterable[tuple[str, Callable[[], Probe]]], output: Path, seconds: float) -> None:
    """Writes what each probe gives, until the time is over. makers: by name; each makes its inputs."""
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    known, began, left_out = {row["name"] for row in rows}, time.monotonic(), []
    for name, make in makers:
        if name in known:
            continue
        if time.monotonic() - began > seconds:
            left_out.append(name)
            continue
        try:
            row = classes(make())
        except Exception as why:  # a kernel that fails costs no other probe's figures
            row = {"name": name, "failed": f"{type(why).__name__}: {why}".splitlines()[0][:200]}
        rows.append(row)
        print(line(row), flush=True)
        output.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1) + "\n")
        gc.collect()
    output.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1) + "\n")


def line(row: dict[str, Any]) -> str:
    """Of the report's table, in Markdown."""
    if "failed" in row:
        return f"| {row['name']} | failed | {row['failed']} | |"
    found = row["classes"]
    sizes = "; ".join(" ".join(map(str, group)) for group in found)
    verdict = "equal" if len(found) == 1 and not row["moved"] else f"{len(found)} classes"
    others = [f"at {' '.join(map(str, row['moved']))}"] if row["moved"] else []
    others += [f"{size}: {why}" for size, why in row["missing"].items()]
    return f"| {row['name']} | {verdict} | {sizes} | {'; '.join(others)} |"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300, help="begin no probe after that long")
    options = parser.parse_args()
    device = torch.device(options.device)
    tiny = device.type == "cpu"
    setting = Setting(device, torch.float32, 64) if tiny else Setting(device)
    sizes = (1, 2, 5) if tiny else SIZES
    if tiny:
        from kernels.triton.interpreter import compute_as_a_device_does

        compute_as_a_device_does()
    torch.manual_seed(0)
    with torch.inference_mode():
        operations = *operation_probes(setting, sizes), *family_probes(setting, sizes)
        makers = [*operations, *model_probes(setting, sizes)]
        measure(makers, options.json, options.seconds)


if __name__ == "__main__":
    main()
