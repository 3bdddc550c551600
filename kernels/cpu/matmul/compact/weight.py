"""Weights of bfloat16 in 12 bits each, without loss.

A bfloat16 is a sign, 8 bits of exponent and 7 of fraction. The exponents of a matrix's weights are alike:
14 neighbouring ones have all but one in some thousands (of a normal distribution, those from 4 standard
deviations down to a 2,000th of one). So a weight is kept as

    lower byte   8 bits: the exponent's last one and the fraction
    code         4 bits: the sign, and which of 7 the exponent's other bits are, less base, 1 .. 7;
                 0: they are others, and the whole number is in a list of its strip, in order

base is chosen for each matrix. A product gets back every bit (kernels.cpu.matmul.compact.product), and so
gives the bits of kernels.cpu.matmul.packed's product. One token reads all weights once, and waits for memory:
3/4 of the bytes take 3/4 of the time.

    words  [ceil(N / 48), K / 8, 3, 192] uint8: strips of 16 columns, 4 words of k at a time
    lists  of ceil(N / 48) * 3 strips, bfloat16 each, those of a strip's leaves one behind the other

K is a multiple of 8, and at least 16. Columns behind the last one, up to a whole block, are numbers that have
a code: zeros would all be rare. Bytes moved: 1.5 * N * K of weights, 2 * T * K read, 2 * T * N written.
"""

import math
from dataclasses import dataclass

import torch

from kernels.cpu.instruction_sets import target_set
from kernels.cpu.matmul.matrix import PackedTable, padded_bias, params_of, tree_depth, whole_blocks
from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from kernels.cpu.matmul.records import CompactLinearRecord, CompactPackRecord, CompactRowsRecord
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena
from kernels.ops.layers.leaves import MULTIPLE

NUM_CODES = 7
_UPPERS = 127
"""Exponents but for their last bit, that can have a code; of the last one are numbers from 2^127 on, and
those that are none."""
SAMPLE = 1 << 16
"""Weights of which the base is chosen."""
MOST_RARE = 1 / 64
"""More rare numbers than this, in a sample, and a weight stays as it is."""
_STRIP, _WORDS = 192, 4
_AT_ONCE = 1 << 22
"""Bytes of weights that are converted at once."""
_SLACK = 32
"""Numbers behind the last list: a whole register is read."""


@dataclass(frozen=True, kw_only=True)
class CompactWeight(PackedTable):
    """words: see above; params: those of kernels.cpu.matmul.packed."""

    lists: tuple[torch.Tensor, ...]  # int16; those of several strips each
    starts: torch.Tensor  # [leaves, ceil(N / 48) * 3] int64: the address of each strip's list
    base: int

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(part.nbytes for part in (self.starts, *self.lists))

    @property
    def row_words(self) -> int:
        return self.in_features // 2

    def record(
        self, x: torch.Tensor, out: torch.Tensor, terms: torch.Tensor | None = None
    ) -> CompactLinearRecord:
        return CompactLinearRecord(**self._fields(x, out), lists=self.starts.data_ptr(), base=self.base)

    def rows_record(self, indexes: int, out: int) -> CompactRowsRecord:
        return CompactRowsRecord(
            indexes=indexes,
            weight=self.words.data_ptr(),
            out=out,
            words=self.row_words,
            lists=self.starts.data_ptr(),
            base=self.base,
            scratch=self.team.scratch(self.scratch_bytes),
        )


def _padding(base: int) -> int:
    """The bits of a number that has a code."""
    return base + 1 << 8


def choose_base(weight: torch.Tensor) -> int | None:
    """Of the codes for a weight, [N, K] bfloat16. None where too many numbers would be rare."""
    every = max(1, weight.numel() // SAMPLE)
    while math.gcd(every, weight.shape[1]) > 1:  # else it sees some columns only
        every += 1
    sample = weight.view(torch.int16).flatten()[::every] >> 8 & 0x7F
    counts = sample.int().bincount(minlength=128)[:_UPPERS]
    covered = counts.unfold(0, NUM_CODES, 1).sum(-1)  # from each one on
    first = int(covered.argmax())
    return first - 1 if int(covered[first]) >= (1 - MOST_RARE) * len(sample) else None


def compact_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> CompactWeight | PackedWeight:
    """weight: [N, K] bfloat16 or float32; bias: [N] or None; leaves: see kernels.ops.layers.leaves. Where
    kernels.cpu.requirements.why_not() is None. It keeps its own bits where it is float32, the CPU unpacks 12
    too slowly, K does not fit, or too many numbers are rare.

    A matrix of this arena is no weight any more: its memory is used again, from its beginning or from the
    end of what was compacted before. Arena.close_hole() gives back what is left.
    """
    chosen = target_set()
    fits = weight.shape[1] % (2 * _WORDS) == 0 and weight.shape[1] >= 4 * _WORDS
    fits = fits and weight.dtype == torch.bfloat16 and chosen is not None and chosen.compact
    base = choose_base(weight) if fits else None
    arena = arena or Arena()
    if base is None:
        return pack_weight(weight, bias, arena, leaves)
    from kernels.cpu.matmul.compact.product import compact_linear, compact_rows, scratch_bytes  # compiles

    rows, (out_features, in_features) = whole_blocks(weight, arena), weight.shape
    depth = tree_depth(in_features, leaves, MULTIPLE)
    rows.view(torch.int16)[out_features:] = _padding(base)
    size = len(rows) // MATRIX_ROWS, in_features // (2 * _WORDS), 3, _STRIP
    words = arena.smaller(rows, size, torch.uint8)
    lists, starts = _compacted(rows, base, words, depth)
    return CompactWeight(
        words=words,
        params=params_of(padded_bias(out_features, bias), depth),
        out_features=out_features,
        in_features=in_features,
        product=compact_linear,
        gather=compact_rows,
        scratch_bytes=scratch_bytes(in_features // 2, depth),
        depth=depth,
        lists=lists,
        starts=starts,
        base=base,
    )


def _compacted(
    rows: torch.Tensor, base: int, data: torch.Tensor, depth: int
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """rows: [blocks * 48, K] bfloat16, which then are no weight any more where data overlap them. data: to be
    written; they begin at or before the rows, or are elsewhere. depth: of the tree of leaves. Returns the
    lists, and the address of each strip's, of each leaf."""
    from kernels.cpu.matmul.compact.product import count_rare, make_compact
    from kernels.cpu.runtime.thread_pool import TEAM

    blocks, words = len(rows) // MATRIX_ROWS, rows.shape[1] // 2
    some = max(1, _AT_ONCE // (192 * words))
    starts, lists = torch.zeros(3 * blocks, 1 << depth, dtype=torch.int64), []
    for first in range(0, blocks, some):
        count = min(some, blocks - first)
        numbers, read = starts[3 * first : 3 * (first + count)], rows[MATRIX_ROWS * first :]
        to = data[first : first + count]
        ends_before = to.data_ptr() + to.nbytes <= read.data_ptr()
        result = to if ends_before else torch.empty_like(to)
        record = CompactPackRecord(
            rows_of_weight=read.data_ptr(),
            weight=result.data_ptr(),
            numbers=numbers.data_ptr(),
            words=words,
            base=base,
            depth=depth,
        )
        TEAM.run_one(count_rare, 3 * count, record, 1)
        ends = numbers.flatten().cumsum(0)
        rare = torch.zeros(int(ends[-1]) + _SLACK, dtype=torch.int16)
        numbers.copy_(rare.data_ptr() + 2 * (ends.view_as(numbers) - numbers))
        TEAM.run_one(make_compact, 3 * count, record, 1)
        if result is not to:
            to.copy_(result)
        lists.append(rare)
    return tuple(lists), starts.t().contiguous()
