"""Formulas of products in few bits, in float64, for tests of kernels.cpu.matmul."""

import torch

from kernels.cpu.matmul.compact.weight import _STRIP, _WORDS, NUM_CODES, _padding
from kernels.cpu.matmul.int8 import quantize_reference

_COLUMNS = 16


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
