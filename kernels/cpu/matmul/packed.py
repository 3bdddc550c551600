"""Weights of bfloat16 or float32 as the CPU's product reads them (kernels.cpu.matmul.gemm), packed once, at
load.

Blocks of 48 columns n, in a block the words of k one after the other: a word of 32 bits is a pair (k, k + 1)
of bfloat16, or one float32. What a step of the product's innermost loop reads is then contiguous:

    words[n // 48, k // 2, n % 48] = w[n, k] | w[n, k + 1] << 16    bfloat16
    words[n // 48, k, n % 48]      = w[n, k]                        float32

Both dimensions are padded with zeros, K to whole words and N to a multiple of 48. Sums are float32, over k
in ascending order, and do not depend on T: a token's y is bitwise the same with any other tokens.

Bytes moved: N * K values of weights, once per 256 tokens, T * K read and T * N written.

Weights of float32 whose values are all float16, as those of a checkpoint in float16, are held in 16 bits:

    words[n // 48, k, n % 48] = w[n, k]        float16

A product widens them, which is exact, and computes with float32: it gives the bits of the packed product, and
reads half of the bytes (kernels.cpu.matmul.gemm_float32).
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.matrix import PackedTable, padded_bias, params_of, tree_depth
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena
from kernels.ops.layers.leaves import MULTIPLE

PACKED_AT_ONCE = 512 << 10
"""Bytes of weights."""
NARROWED_AT_ONCE = 1 << 22
"""Bytes of float32 that are looked at, or narrowed, at once."""


class PackedWeight(PackedTable):
    """words: [ceil(N / 48), W, 48], of W words, int32, or float16 for float32; params: [ceil(N / 48) * 48]
    float32, of several leaves behind 48 zeros. A bias of zeros costs nothing."""

    @property
    def input_width(self) -> int:
        return self.words.shape[1] * 4 // self.dtype.itemsize


def pack_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> PackedWeight:
    """weight: [N, K] bfloat16 or float32; bias: [N] or None; leaves: see kernels.ops.layers.leaves. Where
    kernels.cpu.requirements.why_not() is None.

    A matrix of this arena is packed where it lies, and is no weight any more: new memory costs more than
    packing does. Of any other a copy is made.
    """
    from kernels.cpu.matmul.packed_rows import packed_rows  # compiles, the first time

    out_features, in_features = weight.shape
    blocks = -(-out_features // MATRIX_ROWS)
    whole_words = in_features * weight.dtype.itemsize % 4 == 0
    whole = arena.take_whole(weight) if arena is not None and whole_words else None
    words = _packed_copy(weight, blocks, arena or Arena()) if whole is None else _packed_in_place(whole)
    depth = tree_depth(in_features, leaves, MULTIPLE)
    product, scratch = _product(weight.dtype, words.shape[1], depth)
    return PackedWeight(
        words=words,
        params=params_of(padded_bias(out_features, bias), depth),
        out_features=out_features,
        in_features=in_features,
        product=product,
        gather=packed_rows,
        scratch_bytes=scratch,
        dtype=weight.dtype,
        depth=depth,
    )


def _product(dtype: torch.dtype, words: int, depth: int) -> tuple[Operation[LinearRecord], int]:
    """The operation, compiled the first time, and the bytes of a thread's scratch memory. words: of a row;
    depth: of the tree of leaves."""
    if dtype == torch.float32:
        from kernels.cpu.matmul.gemm_float32 import linear_float32
        from kernels.cpu.matmul.leaves import leaf_bytes
        from kernels.cpu.matmul.many_rows import SCRATCH_BYTES

        return linear_float32, leaf_bytes(depth) + SCRATCH_BYTES
    from kernels.cpu.matmul.gemm import scratch_bytes
    from kernels.cpu.matmul.gemm_bfloat16 import linear_bfloat16

    return linear_bfloat16, scratch_bytes(words, depth)


def _packed_copy(weight: torch.Tensor, blocks: int, arena: Arena) -> torch.Tensor:
    """[N, K] -> [blocks, W, 48] int32, elsewhere."""
    out_features, in_features = weight.shape
    odd = in_features * weight.dtype.itemsize % 4 != 0
    stored = (F.pad(weight, (0, 1)) if odd else weight.contiguous()).view(torch.int32)
    length, whole = stored.shape[1], out_features // MATRIX_ROWS
    words = arena.zeros((blocks, length, MATRIX_ROWS), torch.int32)
    words[:whole] = stored[: whole * MATRIX_ROWS].view(whole, MATRIX_ROWS, length).transpose(1, 2)
    if whole < blocks:
        words[whole, :, : out_features - whole * MATRIX_ROWS] = stored[whole * MATRIX_ROWS :].t()
    return words


def _packed_in_place(whole: torch.Tensor) -> torch.Tensor:
    """[blocks * 48, K] -> [blocks, W, 48] int32, in the same memory: a block of rows becomes a block of
    columns. Some of them at a time, as many as a core's second-level cache holds twice."""
    stored = whole.view(torch.int32)
    stored = stored.view(-1, MATRIX_ROWS, stored.shape[1])
    words = stored.view(len(stored), -1, MATRIX_ROWS)
    some = max(1, PACKED_AT_ONCE // (4 * stored[0].numel()))
    copy = torch.empty_like(stored[:some])
    for first in range(0, len(stored), some):
        rows = stored[first : first + some]
        copy[: len(rows)] = rows
        words[first : first + some] = copy[: len(rows)].transpose(1, 2)
    return words


def narrow_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> PackedWeight:
    """weight: [N, K] float32; bias: [N] or None; leaves: see kernels.ops.layers.leaves. Where
    kernels.cpu.requirements.why_not() is None. It keeps 32 bits where any of its values is no float16.

    A matrix of this arena is no weight any more; its memory is used as kernels.cpu.matmul.compact.weight
    does.
    """
    arena = arena or Arena()
    packed = pack_weight(weight, bias, arena, leaves)
    wide = packed.words.view(torch.float32)
    some = max(1, NARROWED_AT_ONCE // wide[0].nbytes)
    if not all(_is_half(wide[first : first + some]) for first in range(0, len(wide), some)):
        return packed
    from kernels.cpu.matmul.gemm_float32 import linear_halves, rows_of_halves, scratch_bytes  # compiles

    words = arena.smaller(packed.words, wide.shape, torch.float16)
    for first in range(0, len(wide), some):
        words[first : first + some] = wide[first : first + some].half()
    scratch = scratch_bytes(packed.in_features, packed.depth)
    return replace(packed, words=words, product=linear_halves, gather=rows_of_halves, scratch_bytes=scratch)


def _is_half(values: torch.Tensor) -> bool:
    """Whether every bit of these float32 comes back from float16."""
    return torch.equal(values.half().float().view(torch.int32), values.view(torch.int32))
