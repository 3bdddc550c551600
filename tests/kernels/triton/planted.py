"""Paged attention on the emulator, as compiled for a capability: right, poisoned, reversed, and with bugs
planted.

    python -m tests.kernels.triton.planted 90

Prints a line of JSON for each bug: whether it was found, and by what. In a process of its own, since Triton
here compiles. The PTX is changed before it is read, so that the rest of the way is that of a kernel.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from unittest import mock

import torch

from kernels.triton.attention.paged_attention import paged_attention
from ptx_emulator.launch import emulating
from ptx_emulator.machine import Fault
from tests.kernels.attention_cases import Case
from tests.kernels.triton.attention.test_paged_attention import to_device

ROWS = [(70, 1), (3, 1), (66, 10)]
Edit = Callable[[str], str]


@dataclass(frozen=True)
class Bug:
    """A change of PTX. `only`: in kernels that have this; `wrong`: where it need not be a fault, but other
    bits."""

    name: str
    only: str
    edit: Edit


def replaced(pattern: str, by: str, which: int = 0) -> Edit:
    """Replaces one match of `pattern`, by its number; from the end if that is negative."""

    def edit(ptx: str) -> str:
        matches = list(re.finditer(pattern, ptx))
        if not matches:
            return ptx
        match = matches[which % len(matches)]
        return ptx[: match.start()] + match.expand(by) + ptx[match.end() :]

    return edit


_WAIT = r"cp\.async\.wait_group\s+\d+;"
_TILE = r"((?:ldmatrix|ld\.shared\.v4)\S*\s+\{[^}]*\}, \[%r\d+)(\+\d+)?\]"
_STORE = r"(@%p\d+ st\.global\S+ \[ %rd\d+ \+ )0"
BUGS = (
    Bug("a copy is not waited for", "cp.async", replaced(_WAIT, "")),
    Bug("a wait is for too few groups", "cp.async", replaced(_WAIT, "cp.async.wait_group 9;")),
    Bug("no barrier before a tile is read", "cp.async", replaced(rf"({_WAIT})\s*bar\.sync\s+0;", r"\1")),
    Bug("a barrier less at the end", "bar.sync", replaced(r"bar\.sync\s+0;", "", -1)),
    Bug("a load has no mask", "ld.global", replaced(r"@%p\d+ (ld\.global\.v4)", r"\1", -1)),
    Bug("a result is stored one element on", "st.global", replaced(_STORE, r"\g<1>2")),
    Bug("a tile is read one row on", "ld.shared|ldmatrix", replaced(_TILE, r"\1+16]")),
    Bug("a product is not waited for", "wgmma", replaced(r"wgmma\.wait_group\S+\s+\d+;", "")),
    Bug("no fence before a product", "wgmma", lambda ptx: re.sub(r"fence\.proxy\.async\S*;", "", ptx)),
    Bug("a product goes on from the last", "wgmma", replaced(r", 0, 1, 1, 0, 0;", ", 1, 1, 1, 0, 0;")),
)


def run(capability: int, rows: list[tuple[int, int]], edit: Edit = str, **options: object) -> torch.Tensor:
    """Attention of `rows` in bfloat16, as tests/kernels/attention_cases.py makes them, in chunks of 64: so
    programs have chunks that they see whole, and merge."""
    case = Case(rows, torch.bfloat16, block_size=16)
    batch = to_device(case, torch.device("cpu"))
    with ExitStack() as stack:
        for module in ("attention_sizes", "merge_chunks", "paged_attention"):
            stack.enter_context(mock.patch(f"kernels.triton.attention.{module}.CHUNK", 64))
        stack.enter_context(emulating(capability, edit=edit, **options))
        return paged_attention(case.query, case.key_cache, case.value_cache, batch, case.scale)


def outcomes(capability: int) -> Iterator[dict[str, object]]:
    """Plants each bug in each kernel that can have it, alone."""
    clean = run(capability, ROWS)
    exact = Case(ROWS, torch.bfloat16, block_size=16).exact()
    assert (clean.double() - exact).abs().max() < 0.01
    for options in ({"poison": 0x7E}, {"reverse": True}):
        same = bool((run(capability, ROWS, **options).view(torch.int16) == clean.view(torch.int16)).all())
        yield {"bug": None, "options": str(options), "same": same}
    for bug in BUGS:
        touched: list[str] = []

        def edit(ptx: str, bug: Bug = bug, touched: list[str] = touched) -> str:
            changed = bug.edit(ptx) if re.search(bug.only, ptx) else ptx
            touched.extend(["changed"] if changed != ptx else [])
            return changed

        try:
            result = run(capability, ROWS, edit)
            found = "" if (result.view(torch.int16) == clean.view(torch.int16)).all() else "other bits"
        except Fault as fault:
            found = str(fault).rpartition(": ")[2]
        if touched:
            yield {"bug": bug.name, "found": found}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capability", type=int)
    for outcome in outcomes(parser.parse_args().capability):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
