"""How the cache holds the words that attention multiplies: 16 of a vector, one after the other.

whole         as they are: two bfloat16, or a float32
pairs         two numbers of e4m3 in place of two bfloat16
floats        a number of e4m3 in place of a float32

Widening is exact, and comes right behind the load: sums have the order that they have with whole words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import I8, I8S, I16S, I32S, LANES, load, of_bf16

_PAIRS = ir.VectorType(I8, 2 * LANES)


@dataclass(frozen=True, eq=False)
class StoredWords:
    """The words of one vector in memory."""

    size: int  # bytes
    pairs: Any  # the vector of words as they lie there
    load: Callable[[Any, Any], Any]  # (builder, address): I32S


def _load_pairs(builder: Any, address: Any) -> Any:
    return builder.bitcast(OPERATIONS.widen_e4m3(builder, load(builder, address, _PAIRS)), I32S)


def _load_floats(builder: Any, address: Any) -> Any:
    halves = OPERATIONS.widen_e4m3(builder, load(builder, address, I8S))
    return builder.bitcast(of_bf16(builder, halves), I32S)


WHOLE = StoredWords(4 * LANES, I32S, lambda builder, address: load(builder, address, I32S))
E4M3_PAIRS = StoredWords(2 * LANES, I16S, _load_pairs)
E4M3_FLOATS = StoredWords(LANES, I8S, _load_floats)
