"""How the cache holds the words that attention multiplies, 16 of a vector, one after the other; and how they
are multiplied.

pairs          as they are: two bfloat16
floats         as they are: a float32
e4m3 pairs     two numbers of e4m3 in place of two bfloat16
e4m3 floats    a number of e4m3 in place of a float32

Widening is exact, and comes right behind the load: sums have the order that they have with whole words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.narrow_words import load_e4m3_floats, load_e4m3_pairs, load_u16, store_i16
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    add_floats,
    add_pairs,
    load_i32,
    pair_inputs,
    pair_weights,
    store_i32,
    whole_words,
)


@dataclass(frozen=True, eq=False)
class StoredWords:
    """Operations on the words of a vector, which may be multiplied in several parts (kernels.cpu.isa.dot)."""

    size: int
    """Bytes of them, in memory."""
    in_word: int
    """Values of a word, and positions of a step of mixing."""
    parts: int
    weights: Callable[[i32x16, int], i32x16]
    """(words, part): a part of the cache's words."""
    inputs: Callable[[i32x16, int], i32x16]
    """(words, part): a part of words of queries, or of weights of positions."""
    add: Callable[[f32x16, i32x16, i32x16], f32x16]
    """(sums, words, x): the sums, and the products of a part of the cache's words and of others."""
    load: Callable[[int], i32x16]
    """(address): widened."""
    load_raw: Callable[[int], i32x16] = load_i32
    """(address): pairs as they lie there."""
    store_raw: Callable[[int, i32x16], None] = store_i32
    """(address, pairs): writes what load_raw() has read."""
    first_half: int = 0xFFFF
    """The bits of the first of such a pair."""

    @property
    def whole(self) -> bool:
        """Whether they are as they are multiplied."""
        return self.load is load_i32


PAIRS = StoredWords(64, 2, PAIR_PARTS, pair_weights, pair_inputs, add_pairs, load_i32)
FLOATS = StoredWords(64, 1, 1, whole_words, whole_words, add_floats, load_i32)
E4M3_PAIRS = StoredWords(
    32, 2, PAIR_PARTS, pair_weights, pair_inputs, add_pairs, load_e4m3_pairs, load_u16, store_i16, 0xFF
)
E4M3_FLOATS = StoredWords(16, 1, 1, whole_words, whole_words, add_floats, load_e4m3_floats)
