"""Sizes of products by expert, which change no bit. Does not import triton."""

import torch

from kernels.triton.matmul.ranges import FEATURES, MANY, UNIT, LinearSizes
from kernels.triton.requirements import next_power_of_2

MANY_TOKENS = 4096
"""Tokens from which on sizes stay the same: of 256 experts with 8 of them chosen, 128 pairs each."""
LARGEST_TILE = 128
LEAST_TILE = 16


def choose_tile(tokens: int, top_k: int, num_experts: int, dtype: torch.dtype, on_device: bool) -> int:
    """Returns how many pairs of an expert a program has: twice as many as each would have if all had as many,
    since they do not. It follows from the next power of two of `tokens`, and from MANY_TOKENS on it is the
    same. on_device: False for Triton's interpreter, which takes longest for the number of programs."""
    pairs = min(MANY_TOKENS, next_power_of_2(max(1, tokens))) * top_k
    if not on_device:
        return min(64, max(LEAST_TILE, next_power_of_2(pairs)))
    most = 32 if dtype == torch.float32 else LARGEST_TILE
    return min(most, max(LEAST_TILE, next_power_of_2(-(-2 * pairs // num_experts))))


def choose_grouped_sizes(
    tiles: int, tile: int, features: int, ranges: int, dtype: torch.dtype, processors: int
) -> LinearSizes:
    """Returns the launch parameters of a product [pairs, features] of so many tiles; see choose_sizes() of
    kernels.triton.matmul.ranges. tiles: the most that there may be, in a step of few tokens as many as are
    likely. processors: of the device; 0: of Triton's interpreter."""
    if not processors:
        return LinearSizes(next_power_of_2(max(16, features)), tile, UNIT, 4, 1, ranges > 1)
    if dtype == torch.float32:
        rows, depth, warps, stages = FEATURES, 16, 4, 2
    elif tile < LARGEST_TILE:
        rows, depth, warps, stages = FEATURES, UNIT, 4, 4
    else:
        rows, depth, warps, stages = 128, UNIT, 8, 3
    programs = tiles * -(-features // rows)
    splits = ranges > 1 and tiles < MANY and programs < 2 * processors
    return LinearSizes(rows, tile, depth, warps, stages, splits)
