"""Weights of float32 whose values are all float16, as those of a checkpoint in float16, held in 16 bits.

Packed as kernels.cpu.matmul.packed packs float32, with half of the bytes:

    values[n // 48, k, n % 48] = w[n, k]        float16

A product widens them, which is exact, and computes with float32: it gives the bits of the packed product.
Bytes moved: 2 * N * K of weights, once per 256 tokens, 4 * T * K read and 4 * T * N written.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.packed import PackedWeight, middle_block, pack_weight
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.runtime.arena import Arena

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

AT_ONCE = 1 << 22
"""Bytes of float32 that are looked at, or narrowed, at once."""


@dataclass(frozen=True)
class HalfWeight:
    """A weight and its bias."""

    values: torch.Tensor  # [ceil(N / 48), K, 48] float16
    bias: torch.Tensor  # [ceil(N / 48) * 48] float32
    out_features: int  # N
    in_features: int  # K
    team: "Team"
    product: Operation[LinearRecord]  # kernels.cpu.matmul.halves.product.linear_halves
    gather: Operation[PackedRowsRecord]  # kernels.cpu.matmul.halves.product.rows_of_halves
    scratch_bytes: int  # kernels.cpu.matmul.halves.product.scratch_bytes

    @property
    def halves(self) -> tuple[int, int]:
        """Addresses of the first block, and of that where the second half begins."""
        return self.values.data_ptr(), self.values[middle_block(self.out_features)].data_ptr()

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.values.nbytes + self.bias.nbytes

    @property
    def is_unpadded(self) -> bool:
        """True: rows of inputs are read as they are."""
        return True

    def record(self, x: torch.Tensor, out: torch.Tensor) -> LinearRecord:
        """The product's record. x: [T, K], out: [T, N], contiguous float32."""
        return LinearRecord(
            x=x.data_ptr(),
            weight=self.values.data_ptr(),
            params=self.bias.data_ptr(),
            out=out.data_ptr(),
            columns=self.out_features,
            words=self.in_features,
            out_bytes=out.dtype.itemsize,
            scratch=self.team.scratch(self.scratch_bytes),
        )

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, K] float32 -> [T, N] float32. wide: changes nothing."""
        assert x.dtype == torch.float32 and x.shape[1] == self.in_features
        x = x.contiguous()
        out = x.new_empty((x.shape[0], self.out_features))
        self.team.run_one(self.product, x.shape[0], self.record(x, out), 0)
        return out

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as it was: [T] int64 -> [T, K] float32."""
        out = torch.empty((len(indexes), self.in_features))
        record = self.rows_record(indexes.data_ptr(), out.data_ptr())
        self.team.run_one(self.gather, len(indexes), record, 8)
        return out

    def rows_record(self, indexes: int, out: int) -> PackedRowsRecord:
        """The record that looks up rows. Addresses."""
        weight = self.values.data_ptr()
        return PackedRowsRecord(indexes=indexes, weight=weight, out=out, words=self.in_features)


def narrow_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None
) -> HalfWeight | PackedWeight:
    """weight: [N, K] float32; bias: [N] or None. Where kernels.cpu.requirements.why_not() is None. It keeps
    32 bits where any of its values is no float16.

    A matrix of this arena is no weight any more; its memory is used as kernels.cpu.matmul.compact.weight
    does.
    """
    arena = arena or Arena()
    packed = pack_weight(weight, bias, arena)
    wide = packed.pairs.view(torch.float32)
    some = max(1, AT_ONCE // wide[0].nbytes)
    if not all(_is_half(wide[first : first + some]) for first in range(0, len(wide), some)):
        return packed
    from kernels.cpu.matmul.halves.product import linear_halves, rows_of_halves, scratch_bytes  # compiles

    values = arena.smaller(packed.pairs, wide.shape, torch.float16)
    for first in range(0, len(wide), some):
        values[first : first + some] = wide[first : first + some].half()
    sizes, scratch = (packed.out_features, packed.in_features), scratch_bytes(packed.in_features)
    return HalfWeight(values, packed.bias, *sizes, packed.team, linear_halves, rows_of_halves, scratch)


def _is_half(values: torch.Tensor) -> bool:
    """Whether every bit of these float32 comes back from float16."""
    return torch.equal(values.half().float().view(torch.int32), values.view(torch.int32))
