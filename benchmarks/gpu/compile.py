"""What the GPU kernels take of a processor: registers, spills, shared memory. Needs no GPU.

    python -m benchmarks.gpu.compile                  # a table, all configurations
    python -m benchmarks.gpu.compile --json -         # the same as JSON
    python -m benchmarks.gpu.compile --only attention
    python -m benchmarks.gpu.compile --capability 80,89,120
    python -m benchmarks.gpu.compile --golden check           # beside benchmarks/gpu/golden.json; quick: some

Each launcher is called as the models' shapes have it, on tensors without memory, and compiles for sm_90
(H100, H200) or other capabilities instead of launching: ptx_emulator.compile_check. Exits with 1 if a
kernel spills, has more shared memory than there is, if the assembler serializes its matrix products, or if a
figure is worse than the golden one by a tenth.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.gpu import golden as gpu_golden
from benchmarks.gpu.launches import Launch, attention_launches, launches
from benchmarks.options import make_parser

E4M3 = 89
"""The least capability that converts from and to float8 e4m3."""
RARE = re.compile(
    r"blocks of (32|64|128|256)|all options|^decode (?!bf16 32/8 x 128$)|(sinks|cap|slopes)$(?<!window, cap)"
    r"|x 256, last_seen$"
    r"|^prod.*(output|gate and up|(32|128) tokens)|14/2 x 64, e|71/1 x 64, e4m3|x (80|96), everything"
    r"|32/32 x (80|96)(?!, everything)|fp32 (14/2|16/8|71/1)|fp(16|32) .*e4m3"
    r"|^low-bit.*(qkv|g32| 64 tokens|experts.* 512|int8 experts|(128|m3) experts of g|m1 experts of Q)"
    r"|^experts.*(Mixtral|64 tokens|fp16)|^route (sparse|4096)"
    r"|(50257 x 768, (1|32)|, (32|64)) rows| (32000|128256)$| (4096|896)$|relu|quick_gelu|gelu_new"
    # Two launches whose kernels have the same schedule and differ in sizes: one stays.
    r"|^attention bf16 (16/8 x 256|32/8 x 128, window|71/1 x 64)$|bidirectional$"
    r"|^product (bf16 (896|qkv)|fp16 .*, (1|64) t)|^head (fp32 128|bf16 151)"
    r"|^experts (bf16 gpt-oss, (512|4096)|fp32 .*, 1 t)|^low-bit (e2m1 experts.*, 4096|e4m3 experts.*, 1 t)"
    r"|^adapters (bf16, 8192 tokens, (heads|logits|lookup)|fp16, 32|fp32, 8192)"
    r"|^rotary_store_kv .*((16/8 x 256|71/1 x 64)$|(14/2 x 64|32/8 x 128), norms$|71/1 x 64, norms, e4m3)"
    r"|^(gated gelu|plain silu) fp32$"
)
"""Launches between others: tests leave them out, since each takes a second or two to compile."""


@dataclass(frozen=True)
class Choice:
    """What to compile, and for which devices."""

    capabilities: Sequence[int] = (90,)
    only: str = ""  # launches with this in their name
    exact: bool = False  # launches of attention whose name ends with it
    usual: bool = False  # without RARE ones
    golden: str = ""  # those of gpu_golden alone; "quick": its QUICK ones

    def launches(self) -> Iterator[tuple[int, str, Launch]]:
        """Yields what each device can run: its capability, the launch's name, and the launch."""
        for capability in self.capabilities:
            for name, launch in attention_launches() if self.exact else launches():
                e4m3 = ("e4m3" in name or "everything" in name) and not name.startswith("low-bit")
                if self.usual and RARE.search(name):
                    continue
                if self.golden and name not in gpu_golden.launches_for(capability):
                    continue
                if self.golden == "quick" and name not in gpu_golden.QUICK:
                    continue
                if self._has(name) and (capability >= E4M3 or not e4m3):
                    yield capability, name, launch

    def _has(self, name: str) -> bool:
        return name.endswith(self.only) if self.exact else self.only in name


def compile_share(part: int, parts: int, choice: Choice) -> list[dict[str, Any]]:
    """Every parts-th launch: what a process of its own does."""
    from ptx_emulator.compile_check import compiling

    chosen = list(choice.launches())
    rows = []
    for capability, name, launch in chosen[part::parts]:
        with compiling(capability) as compiled:
            launch()
        rows += [
            asdict(one) | {"launch": name, "programs": one.programs, "fits": one.fits} for one in compiled
        ]
    return rows


def compile_all(jobs: int, choice: Choice) -> list[dict[str, Any]]:
    """A row per capability, launch and kernel, in order of names."""
    shares = [(part, jobs, choice) for part in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        rows = [row for share in pool.map(compile_share, *zip(*shares, strict=True)) for row in share]
    return sorted(rows, key=lambda row: (row["name"], row["launch"], row["capability"]))


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """In Markdown."""
    yield "| kernel | launch | for | warps | stages | registers | spilled | shared | programs | products |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        columns = (
            row["name"].strip("_").removesuffix("_kernel"),
            row["launch"],
            f"sm_{row['capability']}",
            row["warps"],
            row["stages"],
            row["registers"],
            row["spilled"],
            f"{row['shared'] / 1024:.1f} KB",
            row["programs"],
            row["products"] + (" serialized" if row["advice"] else ""),
        )
        yield "| " + " | ".join(map(str, columns)) + " |"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--json", help="write the figures there; -: to standard output, without the table")
    parser.add_argument("--only", default="", help="launches with this in their name")
    parser.add_argument(
        "--usual", action="store_true", help="those launches that tests compile, a third of all"
    )
    parser.add_argument("--exact", action="store_true", help="launches of attention that end with --only")
    parser.add_argument("--capability", help="such as 80,89; default: 90, with --golden 80,86,89,90,100,120")
    parser.add_argument("--golden", choices=("check", "write", "quick"), help="see benchmarks/gpu/golden.py")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.exit(1, "TRITON_INTERPRET=1 is set: Triton interprets and does not compile\n")
    capabilities = list(gpu_golden.CAPABILITIES) if options.golden else [90]
    if options.capability:
        capabilities = [int(number) for number in options.capability.split(",")]
    words = options.only, options.exact, options.usual, options.golden or ""
    rows = compile_all(options.jobs, Choice(capabilities, *words))
    show(rows, options.json)
    if options.golden == "write":
        gpu_golden.write(rows, capabilities)
    worse = []
    if options.golden in ("check", "quick"):
        worse = gpu_golden.report(rows, capabilities if options.golden == "check" else ())
    print(*worse, sep="\n", file=sys.stderr, end="\n" if worse else "")
    if worse or any(row["advice"] or not row["fits"] for row in rows):
        sys.exit(1)


def show(rows: list[dict[str, Any]], output: str | None) -> None:
    """Prints and writes them. output: a file for JSON; "-": JSON takes the tables' place."""
    if output == "-":
        json.dump(rows, sys.stdout, indent=1)
        return
    print(*table(rows), sep="\n")
    if output:
        with open(output, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
