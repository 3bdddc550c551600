"""Weights of bfloat16 or float32 as the CPU's product reads them (kernels.cpu.matmul.gemm), packed once, at
load.

Blocks of 48 columns n, in a block the words of k one after the other: a word of 32 bits is a pair (k, k + 1)
of bfloat16, or one float32. What a step of the product's innermost loop reads is then contiguous:

    pairs[n // 48, k // 2, n % 48] = w[n, k] | w[n, k + 1] << 16    bfloat16
    pairs[n // 48, k, n % 48]      = w[n, k]                        float32

Both dimensions are padded with zeros, K to whole words and N to a multiple of 48. Sums are float32, over k
in ascending order, and do not depend on T: a token's y is bitwise the same with any other tokens.

Bytes moved: N * K values of weights, once per 256 tokens, T * K read and T * N written.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team

PACKED_AT_ONCE = 512 << 10
"""Bytes of weights."""


@dataclass(frozen=True)
class PackedWeight:
    """A weight and its bias in the layout of the packed product."""

    pairs: torch.Tensor  # [ceil(N / 48), W, 48] int32, of W words
    bias: torch.Tensor  # [ceil(N / 48) * 48] float32; zeros where there is none, which costs nothing
    out_features: int  # N
    in_features: int  # K
    team: "Team"
    product: Operation[LinearRecord]  # of kernels.cpu.matmul.gemm_bfloat16 or gemm_float32
    gather: Operation[PackedRowsRecord]  # kernels.cpu.matmul.packed_rows.packed_rows
    scratch_bytes: int  # kernels.cpu.matmul.gemm.scratch_bytes
    dtype: torch.dtype  # of the weight: bfloat16 or float32

    @property
    def halves(self) -> tuple[int, int]:
        """Addresses of the first block and of the first block of the second half."""
        return self.pairs.data_ptr(), self.pairs[middle_block(self.out_features)].data_ptr()

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return self.pairs.nbytes + self.bias.nbytes

    @property
    def is_unpadded(self) -> bool:
        """Whether the product reads rows of inputs as they are, without zeros behind them."""
        return self.in_features * self.dtype.itemsize == 4 * self.pairs.shape[1]

    def record(self, x: torch.Tensor, out: torch.Tensor) -> LinearRecord:
        """The product's record. x: [T, K], with zeros up to a whole word, out: [T, N], contiguous."""
        return LinearRecord(
            x=x.data_ptr(),
            weight=self.pairs.data_ptr(),
            params=self.bias.data_ptr(),
            out=out.data_ptr(),
            columns=self.out_features,
            words=self.pairs.shape[1],
            out_bytes=out.dtype.itemsize,
            scratch=self.team.scratch(self.scratch_bytes),
        )

    def multiply(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        return packed_linear(x, self, wide)

    def rows(self, indexes: torch.Tensor) -> torch.Tensor:
        """Rows of the weight as it was: [T] int64 -> [T, K], in its dtype."""
        values = self.pairs.shape[1] * 4 // self.dtype.itemsize
        out = torch.empty((len(indexes), values), dtype=self.dtype)
        record = self.rows_record(indexes.data_ptr(), out.data_ptr())
        self.team.run_one(self.gather, len(indexes), record, 8)
        return out[:, : self.in_features]

    def rows_record(self, indexes: int, out: int) -> PackedRowsRecord:
        """Returns the record of the operation that looks up rows. indexes, out: addresses."""
        return PackedRowsRecord(
            indexes=indexes, weight=self.pairs.data_ptr(), out=out, words=self.pairs.shape[1]
        )


def middle_block(out_features: int) -> int:
    """Returns the block at which threads with odd numbers begin
    (kernels.cpu.runtime.work_split.linear_middle)."""
    return -(-out_features // 16) // 2 // 3


def packed_linear(x: torch.Tensor, weight: PackedWeight, wide: bool = False) -> torch.Tensor:
    """[T, K] -> [T, N], both of the weight's dtype; wide: float32 that was never rounded."""
    tokens, words, columns = x.shape[0], weight.pairs.shape[1], weight.out_features
    assert x.dtype == weight.dtype and x.shape[1] == weight.in_features
    if x.shape[1] * x.dtype.itemsize != 4 * words:
        x = F.pad(x, (0, 1))
    x = x.contiguous()
    out = x.new_empty((tokens, columns), dtype=torch.float32 if wide else weight.dtype)
    weight.team.run_one(weight.product, tokens, weight.record(x, out), 0)
    return out


def pack_weight(weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None) -> PackedWeight:
    """weight: [N, K] bfloat16 or float32; bias: [N] or None. Where kernels.cpu.requirements.why_not() is
    None.

    A matrix of this arena is packed where it lies, and is no weight any more: new memory costs more than
    packing does. Of any other a copy is made.
    """
    from kernels.cpu.matmul.packed_rows import packed_rows  # compiles, the first time
    from kernels.cpu.runtime.thread_pool import TEAM

    out_features, in_features = weight.shape
    blocks = -(-out_features // MATRIX_ROWS)
    whole_words = in_features * weight.dtype.itemsize % 4 == 0
    whole = arena.take_whole(weight) if arena is not None and whole_words else None
    pairs = _packed_copy(weight, blocks, arena or Arena()) if whole is None else _packed_in_place(whole)
    added, (product, scratch) = padded_bias(weight, bias), _product(weight.dtype, pairs.shape[1])
    sizes = out_features, in_features
    return PackedWeight(pairs, added, *sizes, TEAM, product, packed_rows, scratch, weight.dtype)


def padded_bias(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[ceil(N / 48) * 48] float32, with zeros behind the bias, [N], of a weight [N, K]; None: all are."""
    added = torch.zeros(-(-len(weight) // MATRIX_ROWS) * MATRIX_ROWS)
    if bias is not None:
        added[: len(weight)] = bias
    return added


def whole_blocks(weight: torch.Tensor, arena: Arena) -> torch.Tensor:
    """Returns the rows of a weight [N, K] and those behind them, [ceil(N / 48) * 48, K], in this arena. A
    matrix of the arena is given up; of any other a copy is made."""
    whole = arena.take_whole(weight)
    if whole is None:
        blocks = -(-len(weight) // MATRIX_ROWS)
        whole = arena.zeros((blocks * MATRIX_ROWS, weight.shape[1]), weight.dtype)
        whole[: len(weight)] = weight
    return whole


def _product(dtype: torch.dtype, words: int) -> tuple[Operation[LinearRecord], int]:
    """The operation, compiled the first time, and the bytes of a thread's scratch memory. words: of a row."""
    if dtype == torch.float32:
        from kernels.cpu.matmul.gemm_float32 import linear_float32
        from kernels.cpu.matmul.many_rows import SCRATCH_BYTES

        return linear_float32, SCRATCH_BYTES
    from kernels.cpu.matmul.gemm import scratch_bytes
    from kernels.cpu.matmul.gemm_bfloat16 import linear_bfloat16

    return linear_bfloat16, scratch_bytes(words)


def _packed_copy(weight: torch.Tensor, blocks: int, arena: Arena) -> torch.Tensor:
    """[N, K] -> [blocks, W, 48] int32, elsewhere."""
    out_features, in_features = weight.shape
    odd = in_features * weight.dtype.itemsize % 4 != 0
    words = (F.pad(weight, (0, 1)) if odd else weight.contiguous()).view(torch.int32)
    length, whole = words.shape[1], out_features // MATRIX_ROWS
    pairs = arena.zeros((blocks, length, MATRIX_ROWS), torch.int32)
    pairs[:whole] = words[: whole * MATRIX_ROWS].view(whole, MATRIX_ROWS, length).transpose(1, 2)
    if whole < blocks:
        pairs[whole, :, : out_features - whole * MATRIX_ROWS] = words[whole * MATRIX_ROWS :].t()
    return pairs


def _packed_in_place(whole: torch.Tensor) -> torch.Tensor:
    """[blocks * 48, K] -> [blocks, W, 48] int32, in the same memory: a block of rows becomes a block of
    columns. Some of them at a time, as many as a core's second-level cache holds twice."""
    words = whole.view(torch.int32)
    words = words.view(-1, MATRIX_ROWS, words.shape[1])
    pairs = words.view(len(words), -1, MATRIX_ROWS)
    some = max(1, PACKED_AT_ONCE // (4 * words[0].numel()))
    copy = torch.empty_like(words[:some])
    for first in range(0, len(words), some):
        rows = words[first : first + some]
        copy[: len(rows)] = rows
        pairs[first : first + some] = copy[: len(rows)].transpose(1, 2)
    return pairs
