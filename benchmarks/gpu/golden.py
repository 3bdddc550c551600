"""What kernels took of a processor when that was last looked at: figures that a change must not make worse.

    python -m benchmarks.gpu.compile --golden check    # all of them, for six capabilities; some minutes
    python -m benchmarks.gpu.compile --golden quick    # a few of them, as tests do
    python -m benchmarks.gpu.compile --golden write    # after a change that is meant

benchmarks/gpu/golden.json has them by kernel, launch and capability, with the versions of Triton and of the
assemblers that they are of: with another version nothing is compared.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import triton

from kernels.triton.capabilities import DEFAULT

FILE = Path(__file__).with_name("golden.json")
CAPABILITIES = (80, 86, 89, 90, 100, 120)
SHAPES = ("32/8 x 128", "16/8 x 256")
ATTENTION = {f"attention bf16 {shape}" for shape in SHAPES}
"""Whose sizes follow the capability: for all of them."""
LAUNCHES = {
    *ATTENTION,
    "attention bf16 14/2 x 64",
    "attention bf16 32/8 x 128, e4m3",
    "attention bf16 16/16 x 64, bidirectional",
    *(f"head bf16 128256 x 4096, {rows} rows" for rows in (1, 256)),
    *(f"product bf16 {name}, {tokens} tokens" for name in ("qkv", "down") for tokens in (1, 512)),
    *(f"low-bit {kind} down, {tokens} tokens" for kind in ("int4-g128", "e4m3") for tokens in (1, 512)),
    *(f"experts bf16 Qwen3-30B, {tokens} tokens" for tokens in (1, 4096)),
    *(f"low-bit int4-g128 experts of Qwen3-30B, {tokens} tokens" for tokens in (1, 4096)),
    *(f"low-bit e2m1 experts of gpt-oss, {tokens} tokens" for tokens in (1, 4096)),
    "route Qwen3-30B",
    *(f"latents bf16 128 heads{splits}" for splits in ("", ", splits")),
    "states Qwen3-Next",
    "states Granite 4 H Small",
    "add_rms_norm bf16 8192",
    "gated silu bf16",
    "rotary_store_kv bf16 32/8 x 128",
    "sample 151936",
    "tile_stats with groups 151936",
    "token_logprobs 151936",
}
"""Those that decide how long a step takes, for sm_90. Tests compile QUICK alone."""
QUICK = {
    "attention bf16 32/8 x 128",
    "product bf16 down, 1 tokens",
    "tile_stats with groups 151936",
}
COSTS = ("registers", "spilled", "shared")
GAINS = ("programs",)
MARGIN = 1.1
Row = dict[str, Any]
Golden = dict[str, dict[str, int]]


def launches_for(capability: int) -> set[str]:
    """Returns the names of the launches that have golden figures there."""
    return LAUNCHES if capability == DEFAULT else ATTENTION


def versions() -> dict[str, str]:
    """Returns what figures depend on beside our code."""
    from kernels.triton.assembler import ASSEMBLERS, version_of

    return {"triton": triton.__version__, "ptxas": ", ".join(map(version_of, ASSEMBLERS))}


def key(row: Row) -> str:
    """Names a kernel in one configuration."""
    return f"{row['name']} of {row['launch']} for sm_{row['capability']}"


def figures_of(row: Row) -> dict[str, int]:
    """Returns the figures of a row of benchmarks.gpu.compile."""
    return {name: row[name] for name in (*COSTS, *GAINS)}


def merged(rows: Sequence[Row]) -> Golden:
    """Returns figures by key; of several variants of a kernel in one launch the worst of each."""
    found: Golden = {}
    for row in rows:
        figures, known = figures_of(row), found.get(key(row))
        if known is not None:
            figures = {
                name: (min if name in GAINS else max)(value, known[name]) for name, value in figures.items()
            }
        found[key(row)] = figures
    return found


def write(rows: Sequence[Row], capabilities: Sequence[int], path: Path = FILE) -> None:
    """Writes the file, a line per kernel. Figures of the same versions for other capabilities stay."""
    figures = merged(rows)
    if path.exists() and (known := read(path))[0] == versions():
        figures |= {name: old for name, old in known[1].items() if _capability(name) not in capabilities}
    kernels = ",\n".join(f'  "{name}": {json.dumps(figures[name])}' for name in sorted(figures))
    path.write_text(f'{{"versions": {json.dumps(versions())},\n "kernels": {{\n{kernels}\n }}}}\n')


def _capability(name: str) -> int:
    """Of a key()."""
    return int(name.rpartition("_")[2])


def read(path: Path = FILE) -> tuple[dict[str, str], Golden]:
    """Returns versions, and figures by key."""
    content = json.loads(path.read_text())
    return content["versions"], content["kernels"]


def worse(rows: Sequence[Row], golden: Golden) -> Iterator[str]:
    """Yields a line for each figure that is worse by more than a tenth, and for each kernel without any."""
    for name, figures in merged(rows).items():
        if (known := golden.get(name)) is None:
            yield f"{name}: has no golden figures"
            continue
        for figure, value in figures.items():
            more, less = value > MARGIN * known[figure], MARGIN * value < known[figure]
            if less if figure in GAINS else more:
                yield f"{name}: {figure} {known[figure]} -> {value}"


def report(rows: Sequence[Row], capabilities: Sequence[int]) -> list[str]:
    """Returns what is wrong with rows, which are all of these capabilities; nothing: all is as it was."""
    known, golden = read()
    if known != versions():
        return [f"{FILE.name} is of {known}, and this is {versions()}: write it anew"]
    expected = {name for name in golden if _capability(name) in capabilities}
    gone = sorted(expected - merged(rows).keys())
    return [*worse(rows, golden), *(f"{name}: is not compiled any more" for name in gone)]
