"""Sizes of products by expert, which change no bit, and the steps that have all sizes. Does not import
triton."""

import torch

from kernels.triton.capabilities import Capability, capability_of
from kernels.triton.matmul.ranges import FEATURES, MANY, UNIT, LinearSizes
from kernels.triton.requirements import next_power_of_2, num_processors

MANY_TOKENS = 4096
"""Tokens from which on sizes stay the same: of 256 experts with 8 of them chosen, 128 pairs each."""
LEAST_TILE = 16


def token_classes(most: int, with_experts: bool = False) -> list[int]:
    """Returns numbers of tokens up to `most` that together have all launch parameters of products.
    with_experts: of those by expert, or by head, too."""
    many = MANY_TOKENS if with_experts else MANY
    return sorted({min(most, 1 << power) for power in range(many.bit_length())})


def class_pairs(tokens: int, top_k: int) -> int:
    """Returns of how many pairs the step is for which sizes are chosen."""
    return min(MANY_TOKENS, next_power_of_2(max(1, tokens))) * top_k


def most_tiles(pairs: int, num_experts: int, tile: int) -> int:
    """Returns how many tiles so many pairs have at most: each expert that has pairs has one that is not
    full."""
    with_pairs = min(pairs, num_experts)
    return with_pairs + (pairs - with_pairs) // tile


def largest_tile(dtype: torch.dtype, capability: Capability) -> int:
    """Returns the most pairs of a program: without the matrix instructions of 9.0 and 10.0, whose operands
    and sums are elsewhere, more would not fit into registers."""
    if dtype == torch.float32:
        return 32
    return 128 if capability.number in (90, 100) else 64


def choose_tile(tokens: int, top_k: int, num_experts: int, most: int, on_device: bool) -> int:
    """Returns how many pairs of an expert a program has: twice as many as each would have if all had as many,
    since they do not. It follows from the next power of two of `tokens`, and from MANY_TOKENS on it is the
    same. most: largest_tile(). on_device: False for Triton's interpreter, which takes longest for the number
    of programs."""
    pairs = class_pairs(tokens, top_k)
    if not on_device:
        return min(64, max(LEAST_TILE, next_power_of_2(pairs)))
    return min(most, max(LEAST_TILE, next_power_of_2(-(-2 * pairs // num_experts))))


def choose_grouped_sizes(
    tiles: int, tile: int, features: int, ranges: int, dtype: torch.dtype, device: torch.device
) -> LinearSizes:
    """Returns the launch parameters of a product [pairs, features]; see choose_sizes() of
    kernels.triton.matmul.ranges. tiles: the most that a step of class_pairs() may have, so that sizes follow
    from the next power of two of its tokens. device: one that is a CPU is Triton's interpreter."""
    if device.type == "cpu":
        return LinearSizes(next_power_of_2(max(16, features)), tile, UNIT, 4, 1, ranges > 1)
    largest = largest_tile(dtype, capability_of(device))
    if dtype == torch.float32:
        rows, depth, warps, stages = FEATURES, 16, 4, 2
    elif tile < largest:
        rows, depth, warps, stages = FEATURES, UNIT, 4, 4
    elif largest == 128:
        rows, depth, warps, stages = 128, UNIT, 8, 3
    else:  # twice the values of K at a time would spill on 8.0
        rows, depth, warps, stages = 128, UNIT // 2, 8, 4
    programs = tiles * -(-features // rows)
    splits = ranges > 1 and programs < 2 * num_processors(device)
    return LinearSizes(rows, tile, depth, warps, stages, splits)
