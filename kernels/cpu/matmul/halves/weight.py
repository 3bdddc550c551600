"""Weights of float32 whose values are all float16, as those of a checkpoint in float16, held in 16 bits.

Packed as kernels.cpu.matmul.packed packs float32, with half of the bytes:

    words[n // 48, k, n % 48] = w[n, k]        float16

A product widens them, which is exact, and computes with float32: it gives the bits of the packed product.
Bytes moved: 2 * N * K of weights, once per 256 tokens, 4 * T * K read and 4 * T * N written.
"""

import torch

from kernels.cpu.matmul.matrix import PackedTable
from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from kernels.cpu.runtime.arena import Arena

AT_ONCE = 1 << 22
"""Bytes of float32 that are looked at, or narrowed, at once."""


class HalfWeight(PackedTable):
    """words: [ceil(N / 48), K, 48] float16; params: [ceil(N / 48) * 48] float32. All results are float32."""


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
    wide = packed.words.view(torch.float32)
    some = max(1, AT_ONCE // wide[0].nbytes)
    if not all(_is_half(wide[first : first + some]) for first in range(0, len(wide), some)):
        return packed
    from kernels.cpu.matmul.halves.product import linear_halves, rows_of_halves, scratch_bytes  # compiles

    words = arena.smaller(packed.words, wide.shape, torch.float16)
    for first in range(0, len(wide), some):
        words[first : first + some] = wide[first : first + some].half()
    return HalfWeight(
        words=words,
        params=packed.params,
        out_features=packed.out_features,
        in_features=packed.in_features,
        product=linear_halves,
        gather=rows_of_halves,
        scratch_bytes=scratch_bytes(packed.in_features),
        dtype=torch.float32,
    )


def _is_half(values: torch.Tensor) -> bool:
    """Whether every bit of these float32 comes back from float16."""
    return torch.equal(values.half().float().view(torch.int32), values.view(torch.int32))
