"""Weights in 8 bits: a scale per row of the weight, made at load; inputs in 8 bits, a scale per token.

    w[n, k] ~ v[n] * p[n, k]       p integers of -127 .. 127, v[n] = max_k |w[n, k]| / 127
    x[t, k] ~ u[t] * q[t, k]       the same for each token, in every step
    y[t, n] = v[n] * u[t] * sum_k q[t, k] * p[n, k] + b[n]

CPUs multiply unsigned by signed bytes (four products per word with VNNI), so that x is stored as
q + 128, and 128 * sum_k p[n, k] is subtracted at the end: params of a column are its bias, its scale and
this correction. Sums are whole numbers below 2^31 and exact: no order of summation matters, and a token's
y is bitwise the same whatever the other rows are. What is lost is lost in rounding p and q; see
docs/performance.md.

Weights are packed as kernels.cpu.matmul.packed packs them, four of k in a word instead of two:

    words[n // 48, k // 4, n % 48] = p[n, k .. k + 3]

K is padded with zeros to a multiple of 16, N to one of 48. Bytes moved: N * K of weights, half of
bfloat16.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.packed import middle_block
from kernels.cpu.matmul.records import LinearRecord, QuantizedRowsRecord, QuantizeRecord
from kernels.cpu.runtime.arena import Arena
from kernels.cpu.runtime.grain import row_grain

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

PAD = 16


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight and its bias, as the product of integers wants them."""

    words: torch.Tensor  # [ceil(N / 48), padded K / 4, 48] int32
    params: torch.Tensor  # [ceil(N / 48) * 3, 3, 16] int32: bias, scale (both bits of float32), correction
    out_features: int  # N
    in_features: int  # K
    team: "Team"
    product: Operation[LinearRecord]  # kernels.cpu.matmul.gemm_int8.linear_int8
    quantize: Operation[QuantizeRecord]  # kernels.cpu.matmul.quantize.quantize_rows
    gather: Operation[QuantizedRowsRecord]  # kernels.cpu.matmul.quantize.quantized_rows
    scratch_bytes: int  # kernels.cpu.matmul.gemm.scratch_bytes

    @property
    def halves(self) -> tuple[int, int]:
        """Addresses of the first block, and of that where the second half begins."""
        return self.words.data_ptr(), self.words[middle_block(self.out_features)].data_ptr()

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.words.nbytes + self.params.nbytes

    @property
    def is_unpadded(self) -> bool:
        """Whether the product reads rows of inputs as they are, without zeros behind them."""
        return self.in_features == 4 * self.words.shape[1]

    def record(self, x: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> LinearRecord:
        """The product's record. x: [T, padded K] uint8, scales: [T] float32."""
        return LinearRecord(
            x=x.data_ptr(),
            weight=self.words.data_ptr(),
            params=self.params.data_ptr(),
            out=out.data_ptr(),
            columns=self.out_features,
            words=self.words.shape[1],
            out_bytes=out.dtype.itemsize,
            scales=scales.data_ptr(),
            scratch=self.team.scratch(self.scratch_bytes),
        )

    def quantize_record(self, x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> QuantizeRecord:
        """The record before it, which makes its input. x: [T, padded K] bfloat16."""
        width = 4 * self.words.shape[1]
        return QuantizeRecord(x=x.data_ptr(), out=out.data_ptr(), scales=scales.data_ptr(), width=width)

    def rows_record(self, indexes: int, out: int) -> QuantizedRowsRecord:
        """The record that looks up rows. Addresses."""
        return QuantizedRowsRecord(
            indexes=indexes,
            weight=self.words.data_ptr(),
            params=self.params.data_ptr(),
            out=out,
            words=self.words.shape[1],
            width=self.in_features,
        )

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        return quantized_linear(x, self, wide)

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as it is computed with: [T] int64 -> [T, K] bfloat16."""
        out = torch.empty((len(indexes), self.in_features), dtype=torch.bfloat16)
        record = self.rows_record(indexes.data_ptr(), out.data_ptr())
        self.team.run_one(self.gather, len(indexes), record, 8)
        return out


def quantize_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, K] -> integers [R, K] int32 and scales [R] float32, as in the formula; halves go to even."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    inverse = torch.where(largest > 1e-30, torch.full_like(largest, 127) / largest, 0.0)
    return (wide * inverse[:, None]).round().int(), largest / 127


def quantized_linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The formula. [T, K], [N, K], [N] -> [T, N] float64."""
    (q, u), (p, v) = quantize_reference(x), quantize_reference(weight)
    result = (q.double() @ p.double().T) * u.double()[:, None] * v.double()
    return result if bias is None else result + bias.double()


def quantized_linear(x: torch.Tensor, weight: QuantizedWeight, wide: bool = False) -> torch.Tensor:
    """[T, K] bfloat16 -> [T, N] bfloat16, or float32 that was never rounded."""
    tokens, padded = x.shape[0], 4 * weight.words.shape[1]
    assert x.dtype == torch.bfloat16 and x.shape[1] == weight.in_features
    x = (F.pad(x, (0, padded - x.shape[1])) if padded != x.shape[1] else x).contiguous()
    integers = torch.empty((tokens, padded), dtype=torch.uint8)
    scales = torch.empty(tokens)
    out = x.new_empty((tokens, weight.out_features), dtype=torch.float32 if wide else torch.bfloat16)
    weight.team.run_one(
        weight.quantize, tokens, weight.quantize_record(x, integers, scales), row_grain(padded)
    )
    weight.team.run_one(weight.product, tokens, weight.record(integers, scales, out), 0)
    return out


def quantize_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None
) -> QuantizedWeight:
    """weight: [N, K] bfloat16; bias: [N] or None. Where kernels.cpu.requirements.why_not() is None.
    arena: of the model.

    Memory: the result, and a block of the weight in float32.
    """
    from kernels.cpu.isa.vectors import LANES
    from kernels.cpu.matmul.gemm import scratch_bytes
    from kernels.cpu.matmul.gemm_int8 import linear_int8  # compiles, the first time
    from kernels.cpu.matmul.quantize import quantize_rows, quantized_rows
    from kernels.cpu.runtime.thread_pool import TEAM
    from kernels.cpu.runtime.work_split import COLUMNS

    out_features, in_features = weight.shape
    blocks, padded = -(-out_features // COLUMNS), -(-in_features // PAD) * PAD
    words = (arena or Arena()).zeros((blocks, padded // 4, COLUMNS), torch.int32)
    biases, scales = torch.zeros(blocks * COLUMNS), torch.zeros(blocks * COLUMNS)
    corrections = torch.zeros(blocks * COLUMNS, dtype=torch.int32)
    for block in range(blocks):
        rows = slice(block * COLUMNS, min(out_features, (block + 1) * COLUMNS))
        integers, scales[rows] = quantize_reference(weight[rows])
        corrections[rows] = 128 * integers.sum(-1, dtype=torch.int32)
        bytes_ = F.pad(integers, (0, padded - in_features)).to(torch.int8).contiguous()
        words[block, :, : len(integers)] = bytes_.view(torch.int32).t()
    if bias is not None:
        biases[:out_features] = bias
    columns = (biases.view(torch.int32), scales.view(torch.int32), corrections)
    params = torch.stack([column.view(-1, LANES) for column in columns], 1).contiguous()
    compiled = linear_int8, quantize_rows, quantized_rows
    scratch = scratch_bytes(words.shape[1])
    return QuantizedWeight(words, params, out_features, in_features, TEAM, *compiled, scratch)
