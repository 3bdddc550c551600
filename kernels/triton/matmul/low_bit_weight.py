"""Weights of 4 or 8 bits, as kernels.triton.matmul.low_bit_linear reads them. Does not import triton.

    w[n, k] = (p[n, k] - z[n, g]) * s[n, g]       g: the group of k; float32, rounded once to x's dtype

    INT4    p of 0 .. 15; z of 0 .. 255; s keeps the upper 24 bits of a float32: all float16 and bfloat16 do
    INT8    p of -128 .. 127; z is 0; s float32
    E4M3    p float8 e4m3; z is 0; s float32
    E2M1    p twice a float of 4 bits, e2m1, as MXFP4 has them; z is 0; s float32

So values are those of the unpacked weight. Tiles of 64 rows by 64 values of k lie in one piece, in
the order in which a program reads them; of INT4 and E2M1, a byte has a value of the first half of a row in
its low bits, and one of the second half in its high bits:

    codes[n // 64, k // 64, n % 64, k % 32] >> k % 64 // 32 * 4 & 15               INT4, E2M1
    codes[n // 64, k // 64, n % 64, k % 64]                                        the others
    params[n // 64, g, n % 64]      the bits of s; of INT4 with z in the lowest 8

N and K are padded with zeros. Groups are of 32 values of k or a multiple of it; of 8 bits, a multiple of 64.
A weight may be those of all experts, one below the other, each padded with rows of zeros to whole tiles.
Inputs may be permuted first (order), so that groups of any inputs become neighbours.

Bytes moved: N * K / 2 or N * K of weights, and 4 * N * K / G of scales.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum

import torch
import torch.nn.functional as F

ROWS = 64
"""Rows of a tile, and values of k."""
HALF = ROWS // 2
MOST_ROWS = 128
"""Rows of x that a program has at most."""
DOUBLED = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)
"""Twice the values of E2M1, by code."""


class Code(Enum):
    """What stands for a value."""

    INT4 = 0
    E2M1 = 1
    INT8 = 2
    E4M3 = 3

    @property
    def is_half(self) -> bool:
        """Whether it has 4 bits."""
        return self in (Code.INT4, Code.E2M1)

    @property
    def most_rows(self) -> int:
        """Of x in a program: values of floats take more registers than are left beside 128."""
        return 64 if self in (Code.E4M3, Code.E2M1) else MOST_ROWS

    @property
    def least_group(self) -> int:
        """Sizes of groups are multiples of it."""
        return HALF if self.is_half else ROWS

    @staticmethod
    def doubled(codes: torch.Tensor) -> torch.Tensor:
        """Returns twice the numbers that codes of E2M1 stand for, int8."""
        return DOUBLED.to(codes.device)[codes.long()]


@dataclass(frozen=True)
class LowBitWeight:
    """A weight [N, K] in tiles, or those of all experts, [experts, N, K]."""

    codes: torch.Tensor  # [experts * ceil(N / 64), ceil(K / 64), 64, 32 or 64] uint8
    params: torch.Tensor  # [experts * ceil(N / 64), groups, 64] int32
    code: Code
    out_features: int  # N
    in_features: int  # K
    group_size: int
    order: torch.Tensor | None  # [K] int64: which input comes where; None: as they stand
    experts: int = 1

    @classmethod
    def empty(
        cls,
        shape: tuple[int, ...],
        code: Code,
        group_size: int,
        device: torch.device,
        order: torch.Tensor | None = None,
    ) -> "LowBitWeight":
        """Returns a weight of zeros. shape: [N, K] or [experts, N, K]; group_size: K or more is one group,
        which then is padded."""
        *experts, out_features, in_features = shape
        count = math.prod(experts)
        blocks, tiles = count * -(-out_features // ROWS), -(-in_features // ROWS)
        size = min(-(-group_size // code.least_group) * code.least_group, tiles * ROWS)
        assert group_size % code.least_group == 0 or group_size >= in_features
        codes = (blocks, tiles, ROWS, HALF if code.is_half else ROWS)
        params = (blocks, -(-tiles * ROWS // size), ROWS)
        return cls(
            torch.zeros(codes, dtype=torch.uint8, device=device),
            torch.zeros(params, dtype=torch.int32, device=device),
            code,
            out_features,
            in_features,
            size,
            None if order is None else order.to(device),
            count,
        )

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.codes.nbytes + self.params.nbytes + (0 if self.order is None else self.order.nbytes)

    def put(
        self, rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
    ) -> None:
        """Writes some rows. rows: [R] int64, which ones, of all experts one after the other; codes: [R, K or
        more] uint8, int8 or e4m3, in the order of the groups; of E2M1 uint8 as kernels.cpu.matmul.records
        has them; scales: [R, groups] float32; zeros: [R, groups] integers, of INT4."""
        if not len(rows):
            return
        blocks, tiles = self.params.shape[1], self.codes.shape[1]
        bits = scales.float().contiguous().view(torch.int32)
        if zeros is not None:
            assert not (bits & 255).any() and int(zeros.min()) >= 0 and int(zeros.max()) < 256
            bits = bits | zeros.int()
        width = tiles * ROWS
        values = codes.contiguous().view(torch.uint8)[:, :width]
        values = F.pad(values, (0, width - values.shape[1])).view(len(rows), tiles, -1, HALF)
        packed = values[:, :, 0] | values[:, :, 1] << 4 if self.code.is_half else values.flatten(2)
        device, at = self.codes.device, rows.to(self.codes.device)
        row = at % self.out_features
        tile, row = at // self.out_features * self._tiles_of_expert + row // ROWS, row % ROWS
        self.codes[tile, :, row] = packed.to(device)
        bits = F.pad(bits[:, :blocks], (0, blocks - min(blocks, bits.shape[1])))
        self.params[tile, :, row] = bits.to(device)

    def put_rounded(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Writes some rows, rounded to INT8 or INT4. values: [R, K], floats."""
        values = values.to(self.codes.device)
        if self.code is Code.INT8:
            self.put(rows, *round_to_int8(values))
        else:
            assert self.code is Code.INT4
            self.put(rows, *round_to_int4(values, self.group_size))

    @property
    def _tiles_of_expert(self) -> int:
        """Tiles from the first row of an expert to that of the next one."""
        return -(-self.out_features // ROWS)

    def expert(self, index: int) -> "LowBitWeight":
        """Returns the weight [N, K] of one expert; memory is shared."""
        own = slice(index * self._tiles_of_expert, (index + 1) * self._tiles_of_expert)
        return replace(self, codes=self.codes[own], params=self.params[own], experts=1)

    def values(self) -> torch.Tensor:
        """Returns the weight by the formula, in float32, its inputs in their own order: [N, K], or [experts,
        N, K] of several."""
        blocks, tiles, rows, _ = self.codes.shape
        codes = self.codes
        if self.code.is_half:
            codes = torch.cat((codes & 15, codes >> 4), -1)
        codes = codes.transpose(1, 2).reshape(blocks * rows, tiles * ROWS)[:, : self.in_features]
        if self.code is Code.E2M1:
            codes = Code.doubled(codes)
        kinds = {Code.INT8: torch.int8, Code.E4M3: torch.float8_e4m3fn}
        params = self.params.transpose(1, 2).reshape(blocks * rows, -1)
        group = torch.arange(self.in_features, device=codes.device) // self.group_size
        masks = (-256, 255) if self.code is Code.INT4 else (-1, 0)
        scales = (params & masks[0]).view(torch.float32)[:, group]
        values = (
            codes.view(kinds.get(self.code, codes.dtype)).float() - (params & masks[1])[:, group]
        ) * scales
        values = values.view(self.experts, -1, self.in_features)[:, : self.out_features]
        values = values[0] if self.experts == 1 else values
        return values if self.order is None else values[..., self.order.argsort()]


def round_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, K] -> integers [R, K] int8 of -127 .. 127, and scales [R, 1] float32: the largest value by amount
    is 127. Halves go to even."""
    wide = weight.float()
    largest = wide.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 1e-30, 127 / largest, 0.0)
    return (wide * inverse).round().to(torch.int8), largest / 127


def round_to_int4(weight: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[R, K] -> integers [R, padded K] uint8 of 0 .. 15, and scales and zero points [R, groups]: the best of
    several ranges by squared error, from the whole one down, with the zero point where 0 is, or 8 and from
    the value that is largest by amount."""
    wide = weight.float()
    groups = F.pad(wide, (0, -wide.shape[1] % group_size)).view(len(wide), -1, group_size)
    most, least = groups.amax(-1).clamp(min=0), (-groups.amin(-1)).clamp(min=0)
    some = most + least > _LEAST
    span = torch.where(some, most + least, 1.0)
    extreme = torch.where(some, torch.where(least > most, -least, most), 1.0)
    from_least, eight = (15 * least / span).round(), torch.full_like(span, 8.0)
    best_gain, best = torch.full_like(span, -1.0), (torch.zeros_like(span), torch.zeros_like(span))
    for zeros, factor in ((from_least, 15 / span), (eight, -8 / extreme)):
        for share in _SHARES:
            integers = _limited(groups * (factor / share)[..., None], zeros)
            products, squares = (groups * integers).sum(-1), (integers * integers).sum(-1)
            scale = products / squares.clamp(min=0.5)
            better = scale * products > best_gain
            best_gain = torch.where(better, scale * products, best_gain)
            best = torch.where(better, scale, best[0]), torch.where(better, zeros, best[1])
    bits = torch.where(some, best[0], 0.0).view(torch.int32) + 128 & -256
    scales, zeros = bits.view(torch.float32), torch.where(some, best[1], 0.0)
    inverse = torch.where(scales != 0, 1 / scales, 0.0)
    integers = _limited(groups * inverse[..., None], zeros) + zeros[..., None]
    return integers.to(torch.uint8).flatten(1), scales, zeros.to(torch.int16)


_LEAST = 1e-30
"""A group of nothing larger is a group of zeros."""
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)


def _limited(values: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """p - z of the integers nearest to these values of p - z, [R, groups, G] and [R, groups]."""
    low = -zeros[..., None]
    return values.round().clamp(low, low + 15)
