"""The loops of attention on keys and values of one dtype, for each number of (query, head) pairs.

          keys of a tile            values of a tile           weights
bfloat16  [D / 2, 16] pairs of d    [8, D] pairs of positions  [16] bfloat16, to 1.0e-4 of them
float32   [D, 16]                   [16, D]                    [16] float32, as exact as that is

Keys and values of e4m3 lie as those of the dtype that attention computes in (kernels.cpu.attention.e4m3_kv).
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.cpu.attention.softmax import make_softmax
from kernels.cpu.attention.stored_words import E4M3_FLOATS, E4M3_PAIRS, WHOLE, StoredWords
from kernels.cpu.attention.vector_loops import QUERY, make_copy_first_halves, make_mix, make_scores
from kernels.cpu.elementwise import elements
from kernels.cpu.elementwise.elements import Element
from kernels.cpu.isa.selected import OPERATIONS

_sides, _vectors = OPERATIONS.score_tiles, OPERATIONS.mix_vectors
SCORES_OF_8, MIXES_8 = 8 in _sides, 8 in _vectors
"""Whether there are registers enough for the loops of eight pairs."""
FEW_COLUMNS, MANY_COLUMNS = 64 * _vectors[3], 64 * _vectors[6]
"""Bytes of a step's values that loops of up to four pairs go over at once, and those of more."""
COLUMNS_OF_4 = 64 * _vectors[4]

Scores = Callable[[int, int, int, int, int, int], None]
Mix = Callable[[int, int, int, int, int, int, int, int], None]
Softmax = Callable[[int, int, float, int, int], None]
CopyHalves = Callable[[int, int, int], None]


@dataclass(frozen=True, eq=False)
class Loops:
    """See kernels.cpu.attention.vector_loops and kernels.cpu.attention.softmax."""

    element: Element
    size: int  # bytes of a value of queries, weights and results
    stored: int  # bytes of a value in the cache
    in_word: int  # values of a word, and positions of a step of mixing
    query: int  # bytes from one query of an item to the next, in a thread's scratch memory
    widens: bool  # whether queries become float32 there
    scores_3: Scores
    scores_4: Scores
    scores_6: Scores
    scores_8: Scores  # where SCORES_OF_8
    mix_3: Mix
    mix_4: Mix
    mix_6: Mix
    mix_8: Mix  # where MIXES_8
    softmax_3: Softmax
    softmax_4: Softmax
    softmax_6: Softmax
    softmax_8: Softmax
    quiet_softmax_4: Softmax
    quiet_softmax_8: Softmax
    copy_first_halves: CopyHalves  # of pairs, as the cache holds them


def _make(element: Element, stored: StoredWords = WHOLE) -> Loops:
    size, in_word = element.size, 4 // element.size
    dot = OPERATIONS.pairs if in_word == 2 else OPERATIONS.floats
    scores = [make_scores(dot, rows, _sides.get(rows, 1), stored) for rows in (3, 4, 6, 8)]
    mixes = [make_mix(dot, 16 // in_word, rows, _vectors.get(rows, 1), stored) for rows in (3, 4, 6, 8)]
    softmaxes = [make_softmax(size, rows) for rows in (3, 4, 6, 8)]
    quiet = [make_softmax(size, rows, False) for rows in (4, 8)]
    in_cache = stored.size // (16 * in_word)
    loops = *scores, *mixes, *softmaxes, *quiet, make_copy_first_halves(stored.pairs)
    return Loops(element, size, in_cache, in_word, QUERY, False, *loops)


BFLOAT16, FLOAT32 = _make(elements.BFLOAT16), _make(elements.FLOAT32)
BFLOAT16_OF_E4M3, FLOAT32_OF_E4M3 = _make(elements.BFLOAT16, E4M3_PAIRS), _make(elements.FLOAT32, E4M3_FLOATS)
