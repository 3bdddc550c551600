"""Weights in 8 bits: a scale per row of the weight, made at load; inputs in 8 bits, a scale per token.

    w[n, k] ~ v[n] * p[n, k]       p integers of -127 .. 127, v[n] = max_k |w[n, k]| / 127
    x[t, k] ~ u[t] * q[t, k]       the same for each token, in every step
    y[t, n] = v[n] * u[t] * sum_k q[t, k] * p[n, k] + b[n]

CPUs multiply unsigned by signed bytes (four products per word with VNNI), so that x is stored as
q + 128, and 128 * sum_k p[n, k] is subtracted at the end: params of a column are its bias, its scale and
this correction. Sums are whole numbers below 2^31 and exact: no order of summation matters, and a token's
y is bitwise the same whatever the other rows are. What is lost is lost in rounding p and q; see
docs/lab-book.md.

A product of several leaves (kernels.ops.layers.leaves) is that of each leaf, of the weight and of a token: u
and v are those of the leaf.

Weights are packed as kernels.cpu.matmul.packed packs them, four of k in a word instead of two:

    words[n // 48, k // 4, n % 48] = p[n, k .. k + 3]

K is padded with zeros to a multiple of 16, N to one of 48. Bytes moved: N * K of weights, half of
bfloat16.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.matrix import Allocate, PackedTable, Put, padded_bias, tree_depth
from kernels.cpu.matmul.records import LinearRecord, QuantizedRowsRecord, QuantizeRecord
from kernels.cpu.runtime.arena import Arena
from kernels.cpu.runtime.grain import row_grain
from kernels.ops.layers.leaves import MULTIPLE

PAD = 16


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight(PackedTable):
    """words: [ceil(N / 48), padded K / 4, 48] int32; params: [ceil(N / 48) * 3, 3, 16] int32: biases, scales
    (both the bits of float32) and corrections; of several leaves those of each, without biases, and the
    biases behind them. Terms are the scales of x, [M, leaves] float32."""

    quantize: Operation[QuantizeRecord]  # kernels.cpu.matmul.gemm_int8.quantize_rows
    terms_field = LinearRecord.offset("scales")

    @property
    def input_width(self) -> int:
        return 4 * self.words.shape[1]

    def prepare(
        self, x: torch.Tensor, allocate: Allocate, put: Put
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        width = self.input_width
        integers, scales = allocate(width, torch.uint8), allocate(1 << self.depth, torch.float32)
        record = QuantizeRecord(
            x=x.data_ptr(),
            out=integers.data_ptr(),
            scales=scales.data_ptr(),
            width=width,
            depth=self.depth,
        )
        put(self.quantize, record, row_grain(width))
        return integers, scales

    def rows_record(self, indexes: int, out: int) -> QuantizedRowsRecord:
        return QuantizedRowsRecord(
            indexes=indexes,
            weight=self.words.data_ptr(),
            params=self.params.data_ptr(),
            out=out,
            words=self.row_words,
            width=self.input_width,
        )


def quantize_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] -> integers [..., K] int32 and scales [...] float32, as in the formula; halves go to even."""
    wide = x.float()
    largest = wide.abs().amax(-1)
    inverse = torch.where(largest > 1e-30, torch.full_like(largest, 127) / largest, 0.0)
    return (wide * inverse[..., None]).round().int(), largest / 127


def quantize_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> QuantizedWeight:
    """weight: [N, K] bfloat16; bias: [N] or None. Where kernels.cpu.requirements.why_not() is None.
    arena: of the model; leaves: see kernels.ops.layers.leaves.

    Memory: the result, and a block of the weight in float32.
    """
    from kernels.cpu.isa.vectors import LANES
    from kernels.cpu.matmul.gemm import scratch_bytes
    from kernels.cpu.matmul.gemm_int8 import (
        linear_int8,  # compiles, the first time
        quantize_rows,
        quantized_rows,
    )
    from kernels.cpu.runtime.work_split import COLUMNS

    out_features, in_features = weight.shape
    blocks, padded = -(-out_features // COLUMNS), -(-in_features // PAD) * PAD
    words = (arena or Arena()).zeros((blocks, padded // 4, COLUMNS), torch.int32)
    depth = tree_depth(in_features, leaves, MULTIPLE)
    biases, scales = padded_bias(out_features, bias), torch.zeros(leaves, blocks * COLUMNS)
    corrections = torch.zeros(leaves, blocks * COLUMNS, dtype=torch.int32)
    for block in range(blocks):
        rows = slice(block * COLUMNS, min(out_features, (block + 1) * COLUMNS))
        block_rows = weight[rows]
        integers, of_leaves = quantize_reference(block_rows.reshape(len(block_rows), leaves, -1))
        scales[:, rows] = of_leaves.t()
        corrections[:, rows] = 128 * integers.sum(-1, dtype=torch.int32).t()
        bytes_ = F.pad(integers.flatten(1), (0, padded - in_features)).to(torch.int8).contiguous()
        words[block, :, : len(integers)] = bytes_.view(torch.int32).t()
    added = biases if depth == 0 else torch.zeros_like(scales)
    columns = (added.view(torch.int32), scales.view(torch.int32), corrections)
    params = torch.stack([column.view(-1, LANES) for column in columns], 1).contiguous()
    if depth:
        params = torch.cat((params.flatten(), biases.view(torch.int32)))
    return QuantizedWeight(
        words=words,
        params=params,
        out_features=out_features,
        in_features=in_features,
        product=linear_int8,
        gather=quantized_rows,
        quantize=quantize_rows,
        scratch_bytes=scratch_bytes(words.shape[1], depth),
        depth=depth,
    )
