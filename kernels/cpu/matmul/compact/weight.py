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

    data   [ceil(N / 48), K / 8, 3, 192] uint8: strips of 16 columns, 4 words of k at a time
    lists  of ceil(N / 48) * 3 strips, bfloat16 each

K is a multiple of 8, and at least 16. Columns behind the last one, up to a whole block, are numbers that have
a code: zeros would all be rare. Bytes moved: 1.5 * N * K of weights, 2 * T * K read, 2 * T * N written.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.instruction_sets import target_set
from kernels.cpu.matmul.compact.records import CompactLinearRecord, CompactPackRecord, CompactRowsRecord
from kernels.cpu.matmul.packed import PackedWeight, middle_block, pack_weight, padded_bias, whole_blocks
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

NUM_CODES = 7
_UPPERS = 127
"""Exponents but for their last bit, that can have a code; of the last one are numbers from 2^127 on, and
those that are none."""
SAMPLE = 1 << 16
"""Weights of which the base is chosen."""
MOST_RARE = 1 / 64
"""More rare numbers than this, in a sample, and a weight stays as it is."""
_COLUMNS, _STRIP, _WORDS = 16, 192, 4
_AT_ONCE = 1 << 22
"""Bytes of weights that are converted at once."""
_SLACK = 32
"""Numbers behind the last list: a whole register is read."""


@dataclass(frozen=True)
class CompactWeight:
    """A weight and its bias."""

    data: torch.Tensor  # see above
    bias: torch.Tensor  # [ceil(N / 48) * 48] float32
    lists: tuple[torch.Tensor, ...]  # int16; those of several strips each
    starts: torch.Tensor  # [ceil(N / 48) * 3] int64: the address of each strip's list
    base: int
    out_features: int  # N
    in_features: int  # K
    team: "Team"
    product: Operation[CompactLinearRecord]  # kernels.cpu.matmul.compact.product.compact_linear
    gather: Operation[CompactRowsRecord]  # kernels.cpu.matmul.compact.product.compact_rows
    scratch_bytes: int  # kernels.cpu.matmul.compact.product.scratch_bytes

    @property
    def halves(self) -> tuple[int, int]:
        """Addresses of the first block, and of that where the second half begins."""
        return self.data.data_ptr(), self.data[middle_block(self.out_features)].data_ptr()

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return sum(part.nbytes for part in (self.data, self.bias, self.starts, *self.lists))

    @property
    def is_unpadded(self) -> bool:
        """True: other weights are not compacted."""
        return True

    def record(self, x: torch.Tensor, out: torch.Tensor) -> CompactLinearRecord:
        """The product's record. x: [T, K], out: [T, N], contiguous."""
        words = self.in_features // 2
        return CompactLinearRecord(
            x=x.data_ptr(),
            weight=self.data.data_ptr(),
            params=self.bias.data_ptr(),
            out=out.data_ptr(),
            columns=self.out_features,
            words=words,
            out_bytes=out.dtype.itemsize,
            lists=self.starts.data_ptr(),
            base=self.base,
            scratch=self.team.scratch(self.scratch_bytes),
        )

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, K] bfloat16 -> [T, N] bfloat16, or float32 that was never rounded."""
        assert x.dtype == torch.bfloat16 and x.shape[1] == self.in_features
        x, dtype = x.contiguous(), torch.float32 if wide else torch.bfloat16
        out = x.new_empty((x.shape[0], self.out_features), dtype=dtype)
        self.team.run_one(self.product, x.shape[0], self.record(x, out), 0)
        return out

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as it was: [T] int64 -> [T, K] bfloat16."""
        out = torch.empty((len(indexes), self.in_features), dtype=torch.bfloat16)
        record = self.rows_record(indexes.data_ptr(), out.data_ptr())
        self.team.run_one(self.gather, len(indexes), record, 1)
        return out

    def rows_record(self, indexes: int, out: int) -> CompactRowsRecord:
        """The record that looks up rows. Addresses."""
        words = self.in_features // 2
        return CompactRowsRecord(
            indexes=indexes,
            weight=self.data.data_ptr(),
            out=out,
            words=words,
            lists=self.starts.data_ptr(),
            base=self.base,
            scratch=self.team.scratch(self.scratch_bytes),
        )


def compact_reference(weight: torch.Tensor, base: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """weight: [N, K] bfloat16. The data, and the strips' lists, by the formula."""
    strips = -(-weight.shape[0] // 48) * 3
    padded = torch.full((strips * _COLUMNS, weight.shape[1]), _padding(base), dtype=torch.int16)
    padded[: len(weight)] = weight.view(torch.int16)
    halves = padded.int() & 0xFFFF  # [strips * 16, K]
    halves = halves.view(strips, _COLUMNS, -1, _WORDS, 2).permute(0, 2, 3, 1, 4)
    halves = halves.reshape(strips, -1, _WORDS, 2 * _COLUMNS)  # [strips, K / 8, 4, 32]
    codes = (halves >> 8 & 0x7F) - base
    codes = torch.where((codes >= 1) & (codes <= NUM_CODES), codes, 0)
    lower, signed = _in_pairs(halves & 0xFF), _in_pairs(halves >> 12 & 8 | codes)
    upper = signed[:, :, 0] | signed[:, :, 1] << 4
    parts = torch.cat((lower.flatten(-2), upper), -1).to(torch.uint8)
    data = parts.view(-1, 3, halves.shape[1], _STRIP).transpose(1, 2).contiguous()
    lists = [of_strip[code == 0].to(torch.int16) for of_strip, code in zip(halves, codes, strict=True)]
    return data, lists


def _padding(base: int) -> int:
    """The bits of a number that has a code."""
    return base + 1 << 8


def _in_pairs(words: torch.Tensor) -> torch.Tensor:
    """[S, G, 4, 32] -> [S, G, 2, 64]: two words side by side, 8 numbers of each in turns."""
    strips, groups = words.shape[:2]
    return words.view(strips, groups, 2, 2, 4, 8).transpose(3, 4).reshape(strips, groups, 2, 64)


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
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None
) -> CompactWeight | PackedWeight:
    """weight: [N, K] bfloat16 or float32; bias: [N] or None. Where kernels.cpu.requirements.why_not() is
    None. It keeps its own bits where it is float32, the CPU unpacks 12 too slowly, K does not fit, or too
    many numbers are rare.

    A matrix of this arena is no weight any more: its memory is used again, from its beginning or from the
    end of what was compacted before. Arena.close_hole() gives back what is left.
    """
    chosen = target_set()
    fits = weight.shape[1] % (2 * _WORDS) == 0 and weight.shape[1] >= 4 * _WORDS
    fits = fits and weight.dtype == torch.bfloat16 and chosen is not None and chosen.compact
    base = choose_base(weight) if fits else None
    arena = arena or Arena()
    if base is None:
        return pack_weight(weight, bias, arena)
    rows = whole_blocks(weight, arena)
    rows.view(torch.int16)[len(weight) :] = _padding(base)
    size = len(rows) // MATRIX_ROWS, weight.shape[1] // (2 * _WORDS), 3, _STRIP
    data = arena.smaller(rows, size, torch.uint8)
    lists, starts = _compacted(rows, base, data)
    return _compact_weight(weight, padded_bias(weight, bias), data, lists, starts, base)


def _compact_weight(
    weight: torch.Tensor,
    bias: torch.Tensor,
    data: torch.Tensor,
    lists: tuple[torch.Tensor, ...],
    starts: torch.Tensor,
    base: int,
) -> CompactWeight:
    """weight: what it was, of which only the size is looked at. bias: padded."""
    from kernels.cpu.matmul.compact.product import compact_linear, compact_rows, scratch_bytes
    from kernels.cpu.runtime.thread_pool import TEAM

    out_features, in_features = weight.shape
    sizes, scratch = (out_features, in_features), scratch_bytes(in_features // 2)
    return CompactWeight(data, bias, lists, starts, base, *sizes, TEAM, compact_linear, compact_rows, scratch)


def _compacted(
    rows: torch.Tensor, base: int, data: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """rows: [blocks * 48, K] bfloat16, which then are no weight any more where data overlap them. data: to be
    written; they begin at or before the rows, or are elsewhere. Returns the lists, and the address of each
    strip's."""
    from kernels.cpu.matmul.compact.pack import count_rare, make_compact
    from kernels.cpu.runtime.thread_pool import TEAM

    blocks, words = len(rows) // MATRIX_ROWS, rows.shape[1] // 2
    some = max(1, _AT_ONCE // (192 * words))
    starts, lists = torch.zeros(3 * blocks, dtype=torch.int64), []
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
        )
        TEAM.run_one(count_rare, 3 * count, record, 1)
        ends = numbers.cumsum(0)
        rare = torch.zeros(int(ends[-1]) + _SLACK, dtype=torch.int16)
        numbers.copy_(rare.data_ptr() + 2 * (ends - numbers))
        TEAM.run_one(make_compact, 3 * count, record, 1)
        if result is not to:
            to.copy_(result)
        lists.append(rare)
    return tuple(lists), starts
