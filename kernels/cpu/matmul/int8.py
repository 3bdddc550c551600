"""Weights in 8 bits: a scale per row of the weight, made at load; inputs in 8 bits, a scale per token.

    w[n, k] ~ v[n] * p[n, k]       p integers of -127 .. 127, v[n] = max_k |w[n, k]| / 127
    x[t, k] ~ u[t] * q[t, k]       the same for each token, in every step
    y[t, n] = v[n] * u[t] * sum_k q[t, k] * p[n, k] + b[n]

CPUs multiply unsigned by signed bytes (four products per word with VNNI), so that x is stored as
q + 128, and 128 * sum_k p[n, k] is subtracted at the end: params of a column are its bias, its scale and
this correction. Sums are whole numbers below 2^31 and exact: no order of summation matters, and a token's
y is bitwise the same whatever the other rows are. What is lost is lost in rounding p and q; see
docs/lab-book.md.

So ranks that have some of the inputs each need no tree of leaves (kernels.ops.layers.leaves): with v of whole
rows of the weight, and u of whole rows of x, a rank multiplies its integers, and the int32 sums of all ranks
are added before anything is scaled. float32 would not hold them: from 1,041 inputs on, sums may reach 2^24.

Weights are packed as kernels.cpu.matmul.packed packs them, four of k in a word instead of two:

    words[n // 48, k // 4, n % 48] = p[n, k .. k + 3]

K is padded with zeros to a multiple of 16, N to one of 48. Bytes moved: N * K of weights, half of
bfloat16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.matrix import Allocate, PackedTable, Put, padded_bias
from kernels.cpu.matmul.records import LinearRecord, QuantizedRowsRecord, QuantizeRecord
from kernels.cpu.runtime.arena import Arena
from kernels.cpu.runtime.grain import row_grain

PAD = 16


@dataclass(frozen=True, kw_only=True)
class QuantizedWeight(PackedTable):
    """words: [ceil(N / 48), padded K / 4, 48] int32; params: [ceil(N / 48) * 3, 3, 16] int32: biases, scales
    (both the bits of float32) and corrections. Terms are the scales of x, [M, 1] float32."""

    quantize: Operation[QuantizeRecord]  # kernels.cpu.matmul.gemm_int8.quantize_rows
    sums: Operation[LinearRecord] | None = None
    """Of some of the inputs: kernels.cpu.matmul.gemm_int8_sums.linear_int8_sums."""
    terms_field = LinearRecord.offset("scales")

    @property
    def input_width(self) -> int:
        return 4 * self.words.shape[1]

    def prepare(
        self, x: torch.Tensor, allocate: Allocate, put: Put
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.integers(x, allocate, put, 0)

    def integers(
        self, x: torch.Tensor, allocate: Allocate, put: Put, largest: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what prepare() does. largest: as in QuantizeRecord."""
        width = self.input_width
        integers, scales = allocate(width, torch.uint8), allocate(1, torch.float32)
        record = QuantizeRecord(
            x=x.data_ptr(),
            out=integers.data_ptr(),
            scales=scales.data_ptr(),
            width=width,
            largest=largest,
        )
        put(self.quantize, record, row_grain(width))
        return integers, scales

    def add_over_ranks(
        self,
        x: torch.Tensor,
        largest: Callable[[torch.Tensor], torch.Tensor],
        add: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """[T, K] of this rank -> [T, N] float32 of the inputs of all ranks, without a bias: the bits that one
        rank has. largest, add: return the largest values and the sums of all ranks' tensors of one shape."""
        assert self.sums is not None
        of_rows = largest(x.abs().amax(1).float())
        padded, allocate, run = self.on_rows(x)
        integers, terms = self.integers(padded, allocate, run, of_rows.data_ptr())
        out = allocate(self.out_features, torch.int32)
        run(self.sums, self.record(integers, out, terms), 0)
        scales = torch.where(of_rows.isfinite(), of_rows / 127, torch.nan)
        return add(out).float() * self.scales * scales[:, None]

    @property
    def scales(self) -> torch.Tensor:
        """Those of the outputs, [N] float32."""
        return self.params[:, 1].flatten()[: self.out_features].view(torch.float32)

    def rows_record(self, indexes: int, out: int) -> QuantizedRowsRecord:
        return QuantizedRowsRecord(
            indexes=indexes,
            weight=self.words.data_ptr(),
            params=self.params.data_ptr(),
            out=out,
            words=self.row_words,
            width=self.input_width,
        )


def quantize_reference(
    x: torch.Tensor, largest: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] -> integers [..., K] int32 and scales [...] float32, as in the formula; halves go to even.
    largest: [...] float32, the largest absolute values of the rows of which x is a part; None: x is all."""
    wide = x.float()
    largest = wide.abs().amax(-1) if largest is None else largest
    inverse = torch.where(largest > 1e-30, torch.full_like(largest, 127) / largest, 0.0)
    return (wide * inverse[..., None]).round().int(), largest / 127


def quantize_weight(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arena: Arena | None = None,
    leaves: int = 1,
    largest: torch.Tensor | None = None,
) -> QuantizedWeight:
    """weight: [N, K] bfloat16; bias: [N] or None. Where kernels.cpu.requirements.why_not() is None. arena: of
    the model; leaves: 1; largest: [N] float32, the largest absolute values of whole rows, where the weight
    has a rank's part of them; None: it has whole rows.

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

    assert leaves == 1
    sums: Operation[LinearRecord] | None = None
    if largest is not None:
        from kernels.cpu.matmul.gemm_int8_sums import linear_int8_sums  # compiles, the first time

        sums = linear_int8_sums
    out_features, in_features = weight.shape
    blocks, padded = -(-out_features // COLUMNS), -(-in_features // PAD) * PAD
    words = (arena or Arena()).zeros((blocks, padded // 4, COLUMNS), torch.int32)
    biases, scales = padded_bias(out_features, bias), torch.zeros(blocks * COLUMNS)
    corrections = torch.zeros(blocks * COLUMNS, dtype=torch.int32)
    for block in range(blocks):
        rows = slice(block * COLUMNS, min(out_features, (block + 1) * COLUMNS))
        integers, scales[rows] = quantize_reference(weight[rows], None if largest is None else largest[rows])
        corrections[rows] = 128 * integers.sum(-1, dtype=torch.int32)
        bytes_ = F.pad(integers, (0, padded - in_features)).to(torch.int8).contiguous()
        words[block, :, : len(integers)] = bytes_.view(torch.int32).t()
    columns = (biases.view(torch.int32), scales.view(torch.int32), corrections)
    return QuantizedWeight(
        words=words,
        params=torch.stack([column.view(-1, LANES) for column in columns], 1).contiguous(),
        out_features=out_features,
        in_features=in_features,
        product=linear_int8,
        gather=quantized_rows,
        quantize=quantize_rows,
        sums=sums,
        scratch_bytes=scratch_bytes(words.shape[1]),
    )
