"""Weights in 4 bits: a scale and a zero point per output and group of inputs.

    w[n, k] ~ s[n, g] * (p[n, k] - z[n, g])       g: the group of k; p integers of 0 .. 15, z of 0 .. 64

Blocks of 48 columns n; in a block the groups, one after the other; of a group the words of k, then a word
with the scale and the zero point. A word of 32 bits of p has 8 values of k:

    words[n // 48, g, j, n % 48]       p[n, k + i] << 8 i, p[n, k + 4 + i] << 8 i + 4;  i < 4, k = 8 j of g
    words[n // 48, g, G / 8, n % 48]   the upper 24 bits of s, a float32, and z

The scale keeps 16 bits of its fraction: all float16 and bfloat16 are such. K is padded to whole groups, whose
inputs are zeros, N to a multiple of 48. G is a multiple of 16. Inputs may be permuted first (order), so that
groups of any inputs become neighbours.

Bytes moved: N * K / 2 of weights and 4 * N * K / G of scales: 5, 4.5 or 4.25 bits a weight with groups of 32,
64 or 128.

p may be what stands for a float of 4 bits (kernels.cpu.matmul.records): then words hold its code.

**Two levels of scales**, which weights are rounded to by --quantization int4: integers m for each part h of
PART inputs, and a float for the whole output.

    w[n, k] ~ s[n] * m[n, h] * (p[n, k] - z[n, h])       p, m, z of 0 .. 15, |m * (p - z)| < 128

The products of a group are whole numbers then (kernels.cpu.matmul.groups.two_levels); its size says only how
many inputs share their scale. A group's last word has a byte m + 16 * z of each part, and s lies beside the
bias: 4.25 bits a weight with groups of 128, 4.5 with 64. The idea is that of QServe's weights (Lin et al.,
2024), where the parts have 128 inputs and m 8 bits.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.matrix import Allocate, PackedMatrix, Put, padded_bias, params_of, tree_depth
from kernels.cpu.matmul.records import (
    E2M1_INTEGERS,
    E2M1_MIDDLE,
    LARGEST_ZERO,
    PART,
    GroupLinearRecord,
    QuantizeGroupsRecord,
    RoundLevelsRecord,
)
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena
from kernels.cpu.runtime.grain import row_grain

SIZES = (32, 64, 128)
"""Sizes of groups that weights are rounded in."""
STRIP = 16
"""Columns whose biases and scales are neighbours."""


@dataclass(frozen=True)
class GroupedWords:
    """Integers of 4 bits, scales and zero points; or codes of floats of 4 bits
    (kernels.cpu.matmul.records), whose zero points are E2M1_MIDDLE."""

    words: torch.Tensor  # [ceil(N / 48), groups, G / 8 + 1, 48] int32
    out_features: int  # N
    in_features: int  # K
    group_size: int  # G
    order: torch.Tensor | None  # [K] int64: which input comes where; None: as they stand
    e2m1: bool = False  # whether they are codes of floats
    smallest_group: ClassVar[int] = 16
    """Sizes of groups are multiples of it."""
    largest_group: ClassVar[int] = max(SIZES)

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int],
        group_size: int,
        groups: int,
        order: torch.Tensor | None = None,
        arena: Arena | None = None,
        e2m1: bool = False,
    ) -> "GroupedWords":
        """Returns words that are 0. shape: [N, K]; arena: of the model."""
        out_features, in_features = shape
        size = -(-out_features // MATRIX_ROWS), groups, group_size // 8 + 1, MATRIX_ROWS
        words = (arena or Arena()).zeros(size, torch.int32)
        return cls(words, out_features, in_features, group_size, order, e2m1)

    @property
    def groups(self) -> int:
        """Of the inputs."""
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.words.nbytes + (0 if self.order is None else self.order.nbytes)

    def put(
        self, rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
    ) -> None:
        """Writes some rows. rows: [R] int64, which ones; codes: [R, groups * G] uint8 of 0 .. 15, in the
        order of the groups; scales: [R, groups] float32, of which the lowest 8 bits are 0; zeros: [R, groups]
        of 0 .. LARGEST_ZERO; None: E2M1_MIDDLE, of floats."""
        if not len(rows):
            return
        bits = scales.contiguous().view(torch.int32)
        zeros = torch.full_like(bits, E2M1_MIDDLE) if zeros is None else zeros
        assert not (bits & 255).any() and int(zeros.min()) >= 0 and int(zeros.max()) <= LARGEST_ZERO
        assert not self.e2m1 or bool((zeros == E2M1_MIDDLE).all())
        fours = codes.contiguous().view(torch.int32)  # little-endian: the lowest byte first
        eights = fours.view(len(rows), self.groups, -1, 2)
        words = torch.empty(len(rows), *self.words.shape[1:3], dtype=torch.int32)
        torch.bitwise_or(eights[..., 0], eights[..., 1] << 4, out=words[..., :-1])
        torch.bitwise_or(bits, zeros.int(), out=words[..., -1])
        self._scatter(rows, words.flatten(1))

    @property
    def leaf_multiple(self) -> int:
        """What the inputs of a leaf are a multiple of: those of a group; of permuted inputs all."""
        return self.group_size if self.order is None else self.in_features

    def pack(self, bias: torch.Tensor | None, levels: int = 1, leaves: int = 1) -> "GroupedWeight":
        """Returns these words with what multiplies with them. bias: [N] or None; levels: of scales, of which
        those of the second level are 0; leaves: see kernels.ops.layers.leaves. Where
        kernels.cpu.requirements.why_not() is None."""
        from kernels.cpu.matmul.groups.inputs import quantize_groups  # compiles, the first time
        from kernels.cpu.matmul.groups.many_rows import scratch_bytes

        depth = tree_depth(self.in_features, leaves, self.leaf_multiple)
        biases = padded_bias(self.out_features, bias)
        if levels == 2:
            of_leaves = torch.zeros(leaves, len(biases) // STRIP, levels, STRIP)
            if depth:
                params = torch.cat((of_leaves.flatten(), biases))
            else:
                of_leaves[0, :, 0] = biases.view(-1, STRIP)
                params = of_leaves[0]
        else:
            params = params_of(biases, depth)
        return GroupedWeight(
            words=self.words,
            params=params,
            out_features=self.out_features,
            in_features=self.in_features,
            product=_product(self.e2m1, levels),
            scratch_bytes=max(scratch_bytes(self.group_size // 8, depth), 2 * self.in_features),
            depth=depth,
            group_size=self.group_size,
            levels=levels,
            order=self.order,
            quantize=quantize_groups,
            e2m1=self.e2m1,
        )

    def _scatter(self, rows: torch.Tensor, words: torch.Tensor) -> None:
        """Writes the words of some rows, [R, groups * (G / 8 + 1)] int32. Rows that become neighbours in a
        block are written together: one by one, each of their words would be a cache line of its own."""
        if not bool((rows.diff() > 0).all()):
            order = rows.argsort()
            rows, words = rows[order], words[order]
        ends = (rows.diff() != 1) | (rows[1:] % MATRIX_ROWS == 0)
        begin = 0
        for end in (*(ends.nonzero().flatten() + 1).tolist(), len(rows)):
            block, first = divmod(int(rows[begin]), MATRIX_ROWS)
            target = self.words[block].view(-1, MATRIX_ROWS)[:, first : first + end - begin]
            target.copy_(words[begin:end].t())
            begin = end


def integers_of(codes: torch.Tensor) -> torch.Tensor:
    """What stands for floats of 4 bits. codes: [...] of 0 .. 15 -> the same shape, uint8."""
    return torch.tensor(E2M1_INTEGERS, dtype=torch.uint8)[codes.long()]


@dataclass(frozen=True, kw_only=True)
class GroupedWeight(PackedMatrix):
    """words: [ceil(N / 48), groups, G / 8 + 1, 48] int32; params: [ceil(N / 48) * 3, levels, STRIP] float32:
    biases, and scales with two levels; of several leaves see kernels.cpu.matmul.leaves. Terms:
    kernels.cpu.matmul.groups.inputs."""

    group_size: int  # G
    levels: int  # of scales: 1 or 2
    order: torch.Tensor | None  # [K] int64: which input comes where; None: as they stand
    quantize: Operation[QuantizeGroupsRecord]  # kernels.cpu.matmul.groups.inputs.quantize_groups
    e2m1: bool = False  # whether words hold codes of floats
    terms_field = GroupLinearRecord.offset("terms")

    @property
    def groups(self) -> int:
        """Of the inputs."""
        return self.words.shape[1]

    @property
    def padded(self) -> int:
        """K, and zeros up to whole groups."""
        return self.groups * self.group_size

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.order is None else self.order.nbytes)

    @property
    def row_words(self) -> int:
        return self.padded // 8

    def has_inputs_of(self, other: PackedMatrix) -> bool:
        if not isinstance(other, GroupedWeight) or self._input_form != other._input_form:
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)

    @property
    def _input_form(self) -> tuple[int, int, int, int]:
        return self.group_size, self.groups, self.in_features, self.levels

    def prepare(
        self, x: torch.Tensor, allocate: Allocate, put: Put
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        terms_of_group = 2 + (self.group_size // PART if self.levels == 2 else 0)
        integers = allocate(self.padded, torch.int8)
        terms = allocate(self.groups * terms_of_group, torch.int32)
        record = QuantizeGroupsRecord(
            x=x.data_ptr(),
            out=integers.data_ptr(),
            terms=terms.data_ptr(),
            order=0 if self.order is None else self.order.data_ptr(),
            width=self.in_features,
            groups=self.groups,
            group_size=self.group_size,
            levels=self.levels,
            scratch=self.team.scratch(self.scratch_bytes),
        )
        put(self.quantize, record, row_grain(self.padded))
        return integers, terms

    def record(
        self, x: torch.Tensor, out: torch.Tensor, terms: torch.Tensor | None = None
    ) -> GroupLinearRecord:
        assert terms is not None
        return GroupLinearRecord(
            **self._fields(x, out), terms=terms.data_ptr(), group_words=self.group_size // 8
        )

    @property
    def _scales(self) -> torch.Tensor:
        """Those of the second level: [N, groups] float32."""
        leaves, strips = 1 << self.depth, 3 * len(self.words)
        by_leaf = (
            self.params.flatten()[: 2 * STRIP * strips * leaves]
            .view(leaves, strips, 2, STRIP)[:, :, 1]
            .flatten(1)
        )
        return by_leaf.t().repeat_interleave(self.groups >> self.depth, 1)

    def values(self) -> torch.Tensor:
        """The weight as it is computed with: [N, K] float32, its inputs in their own order."""
        blocks, groups, _, _ = self.words.shape
        packed, last = self.words[:, :, :-1], self.words[:, :, -1]
        nibbles = torch.stack([packed >> shift & 15 for shift in (0, 8, 16, 24, 4, 12, 20, 28)], 3)
        integers = nibbles.permute(0, 4, 1, 2, 3).reshape(blocks * MATRIX_ROWS, groups, self.group_size)
        integers = integers_of(integers).int() if self.e2m1 else integers
        last = last.transpose(1, 2).reshape(-1, groups, 1)
        if self.levels == 2:
            values = _of_two_levels(integers, last, self._scales)
        else:
            values = (integers - (last & 255)) * (last & -256).view(torch.float32)
        values = values.flatten(1)[: self.out_features, : self.in_features]
        return values if self.order is None else values[:, self.order.argsort()]


def _of_two_levels(integers: torch.Tensor, last: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """integers: [N, groups, G]; last: their last words, [N, groups, 1]; scales: [N, groups] ->
    [N, groups, G]."""
    parts = integers.view(*integers.shape[:2], -1, PART)
    bytes_ = last >> torch.arange(0, 8 * parts.shape[2], 8, dtype=torch.int32)
    levels: torch.Tensor = (parts - (bytes_ >> 4 & 15)[..., None]) * (bytes_ & 15)[..., None]
    return levels.flatten(2) * scales[:, :, None]


def round_to_two_levels(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> GroupedWeight:
    """Rounds with two levels of scales, each leaf by itself; groups have as many inputs as take the least
    memory. weight: [N, K] bfloat16, K at least PART; bias: [N] or None; arena: of the model; leaves: see
    kernels.ops.layers.leaves. Where kernels.cpu.requirements.why_not() is None."""
    from kernels.cpu.matmul.groups.two_level_rounding import round_levels  # compiles, the first time

    weight, (rows, width) = weight.contiguous(), weight.shape
    group_size = min(SIZES, key=lambda size: (-(-width // size) * (size + 8), -size))
    groups = -(-width // group_size)
    made = GroupedWords.empty((rows, width), group_size, groups, arena=arena).pack(bias, 2, leaves)
    record = RoundLevelsRecord(
        weight=weight.data_ptr(),
        words=made.words.data_ptr(),
        width=width,
        groups=groups,
        group_size=group_size,
        params=made.params.data_ptr(),
        depth=made.depth,
    )
    made.team.run_one(round_levels, rows, record, 1)
    return made


def _product(e2m1: bool, levels: int) -> Operation[GroupLinearRecord]:
    """Compiles it, the first time. e2m1: of words that hold codes of floats; levels: of scales."""
    if levels == 2:
        from kernels.cpu.matmul.groups.two_level_product import two_level_linear

        return two_level_linear
    if e2m1:
        from kernels.cpu.matmul.groups.e2m1_product import e2m1_linear

        return e2m1_linear
    from kernels.cpu.matmul.groups.product import group_linear

    return group_linear
