"""The loops of attention on keys and values of one dtype, for each number of (query, head) pairs.

          keys of a tile            values of a tile           weights
bfloat16  [D / 2, 16] pairs of d    [8, D] pairs of positions  [16] bfloat16, to 1.0e-4 of them
float32   [D, 16]                   [16, D]                    [16] float32, as exact as that is

Keys and values of e4m3 lie as those of the dtype that attention computes in (kernels.cpu.attention.e4m3_kv).
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.cpu.attention.sizes import QUERY
from kernels.cpu.attention.stored_words import E4M3_FLOATS, E4M3_PAIRS, FLOATS, PAIRS, StoredWords
from kernels.cpu.attention.vector_loops import score
from kernels.cpu.elementwise import elements
from kernels.cpu.elementwise.elements import Element
from kernels.cpu.isa.selected import OPERATIONS

_sides, _vectors = OPERATIONS.score_tiles, OPERATIONS.mix_vectors
SCORES_OF_8, MIXES_8 = 8 in _sides, 8 in _vectors
"""Whether there are registers enough for the loops of eight pairs."""
SIDE_3, SIDE_4, SIDE_6, SIDE_8 = (_sides.get(pairs, 1) for pairs in (3, 4, 6, 8))
"""Tiles that are scored side by side, by the pairs of a loop."""
VECTORS_3, VECTORS_4, VECTORS_6, VECTORS_8 = (_vectors.get(pairs, 1) for pairs in (3, 4, 6, 8))
"""Vectors of a value that are mixed side by side, likewise."""
FEW_COLUMNS, COLUMNS_OF_4, MANY_COLUMNS = 64 * VECTORS_3, 64 * VECTORS_4, 64 * VECTORS_6
"""Bytes of a step's values that loops of three pairs go over at once, those of four pairs, and those of
more."""

Score = Callable[[StoredWords, int, int, int, int, int, int, int, int], None]


@dataclass(frozen=True, eq=False)
class Loops:
    """What differs between the dtypes, in kernels.cpu.attention.vector_loops and
    kernels.cpu.attention.softmax."""

    element: Element
    """Of queries, weights and results."""
    words: StoredWords
    query: int = QUERY
    """Bytes from one query of an item to the next, in a thread's scratch memory."""
    widens: bool = False
    """Whether queries become float32 there."""
    score: Score = score
    """As kernels.cpu.attention.vector_loops.score(): of keys."""

    @property
    def stored(self) -> int:
        """Bytes of a value in the cache."""
        return self.words.size // (16 * self.words.in_word)


BFLOAT16, FLOAT32 = Loops(elements.BFLOAT16, PAIRS), Loops(elements.FLOAT32, FLOATS)
BFLOAT16_OF_E4M3 = Loops(elements.BFLOAT16, E4M3_PAIRS)
FLOAT32_OF_E4M3 = Loops(elements.FLOAT32, E4M3_FLOATS)
