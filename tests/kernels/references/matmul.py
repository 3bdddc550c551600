"""Formulas of products in few bits, in float64, for tests of kernels.cpu.matmul."""

import torch

from kernels.cpu.matmul.compact.weight import _STRIP, _WORDS, NUM_CODES, _padding
from kernels.cpu.matmul.int8 import quantize_reference

_COLUMNS = 16


def tree_sum(parts: torch.Tensor) -> torch.Tensor:
    """Adds [2 ** D, ...] as a complete binary tree: neighbours, until one is left."""
    while len(parts) > 1:
        parts = parts[::2] + parts[1::2]
    return parts[0]


def leaf_sums(x: torch.Tensor, weight: torch.Tensor, leaves: int) -> torch.Tensor:
    """Each leaf of a product (kernels.ops.layers.leaves), k ascending: [T, K], [N, K] -> [leaves, T, N]
    float32."""
    sums = torch.zeros(leaves, len(x), len(weight))
    x, weight = x.float().unflatten(1, (leaves, -1)), weight.float().unflatten(1, (leaves, -1))
    for k in range(x.shape[2]):
        sums += x[:, :, k].t()[:, :, None] * weight[:, :, k].t()[:, None]
    return sums


def tree_linear_reference(x: torch.Tensor, weight: torch.Tensor, leaves: int, ranks: int = 1) -> torch.Tensor:
    """The product of a weight whose leaves so many ranks share, as float32: each has its inputs alone, and
    adds its leaves."""
    shares = zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    return tree_sum(torch.stack([tree_sum(leaf_sums(*share, leaves // ranks)) for share in shares]))


def quantized_linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The formula. [T, K], [N, K], [N] -> [T, N] float64."""
    (q, u), (p, v) = quantize_reference(x), quantize_reference(weight)
    result = (q.double() @ p.double().T) * u.double()[:, None] * v.double()
    return result if bias is None else result + bias.double()


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


def _in_pairs(words: torch.Tensor) -> torch.Tensor:
    """[S, G, 4, 32] -> [S, G, 2, 64]: two words side by side, 8 numbers of each in turns."""
    strips, groups = words.shape[:2]
    return words.view(strips, groups, 2, 2, 4, 8).transpose(3, 4).reshape(strips, groups, 2, 64)
