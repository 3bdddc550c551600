"""Weights in groups made of floats, with one level of scales, as a checkpoint might have them."""

import torch

from kernels.cpu.matmul.groups.weight import GroupedWeight, GroupedWords
from kernels.triton.matmul.low_bit_weight import round_to_int4


def one_level(weight: torch.Tensor, bias: torch.Tensor | None, size: int) -> GroupedWeight:
    """Returns the nearest of several ranges. weight: [N, K]; size: of a group."""
    integers, scales, zeros = round_to_int4(weight, size)
    rows, groups = scales.shape
    words = GroupedWords.empty((rows, weight.shape[1]), size, groups)
    words.put(torch.arange(rows), integers.view(rows, groups, size), scales, zeros)
    return words.pack(bias)
