"""Launch parameters of kernels.triton.attention.paged_attention: rows, tile, warps, stages, splits, and why.

Registers and shared memory are as compiled for sm_90, and for 8.0 to 12.0 where these differ (python -m
benchmarks.gpu_compile). No size was chosen by measured time yet.
"""

from dataclasses import dataclass

import torch

from kernels.triton.capabilities import CAPABILITIES, DEFAULT, Capability
from kernels.triton.requirements import next_power_of_2, num_processors

LEAST_CHUNK = 256
"""Least KV tokens of a split: 64 KB of bfloat16 at a head size of 128. Below that the merge and the ramp of
the pipeline are expected to cost more than another program gains."""
MOST_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 2
"""Splits are added up to this number: at 3 stages three programs fit into the shared memory of a
processor."""


@dataclass(frozen=True)
class TileSizes:
    """Launch parameters of one program."""

    rows: int  # M: query heads times tokens
    tile: int  # KV tokens per iteration
    warps: int
    stages: int


_DEFAULT = CAPABILITIES[DEFAULT]
_HOPPER, _CONSUMER_BLACKWELL, _SMALL = 90, 120, 100 << 10


def decode_sizes(
    rows: int, head_dim: int, dtype: torch.dtype, quantized: bool = False, capability: Capability = _DEFAULT
) -> TileSizes:
    """Returns the sizes for rows that decode. rows: query heads of a KV head, times tokens.

    16 rows are the least that the matrix units take, and enough, since memory bandwidth is the limit. 3
    stages of 64 tokens at 128 values are 2 * 32 KB in flight per program, where a processor needs 27 KB at
    all times to saturate the memory of an H200. quantized: the cache has 8 bits a value: half as much in
    flight, but four programs fit where three did; at a head size of 64 the tile is twice as long and there
    are two stages, since 3 of 64 spill with some options. Of float32 and such a cache two stages spill. Where
    a processor has 100 KB of shared memory, two stages let two programs fit."""
    rows, dim = max(16, next_power_of_2(rows)), next_power_of_2(head_dim)
    if dtype == torch.float32:
        return TileSizes(rows, 16, 4 if rows <= 32 else 8, 1 if quantized else 2)
    if quantized and dim <= 64 and rows <= 32:
        return TileSizes(rows, 128, 4, 2)
    stages = 3 if capability.shared > _SMALL else 2
    return TileSizes(rows, 64 if dim <= 128 else 32, 4 if rows <= 32 else 8, stages)


def prefill_sizes(
    head_dim: int, dtype: torch.dtype, quantized: bool = False, capability: Capability = _DEFAULT
) -> TileSizes:
    """Returns the sizes for prompts. M of 64 and more becomes wgmma on Hopper. Compiled for sm_90, 128 x 64
    on 4 warps spills; 8 do not. At a head size of 256, tiles of 64 out of 8 bits spill with a window, a cap,
    slopes and sinks together. Without wgmma (below 9.0, and 12.0), tiles of 64 spill on 8 warps."""
    dim = next_power_of_2(head_dim)
    if dtype == torch.float32:  # no matrix unit computes it without rounding; larger tiles spill
        return TileSizes(32, 16, 8, 1 if quantized else 2)
    wgmma = _HOPPER <= capability.number < _CONSUMER_BLACKWELL
    if dim <= 128:
        return TileSizes(128, 64 if wgmma else 32, 8, 3)
    return TileSizes(64, 64 if wgmma and not quantized else 32, 8, 2)


def choose_splits(
    programs: int, max_length: int, chunk: int | None, tile: int, device: torch.device
) -> tuple[int, int]:
    """Returns how many programs share a row's KV, a power of two so that few variants of the merge exist, and
    the least number of tiles of each."""
    if chunk is not None:
        splits = next_power_of_2(-(-max_length // chunk))
        assert splits <= MOST_SPLITS and chunk % tile == 0, "the chunk is too small for this length"
        return splits, chunk // tile
    wanted = PROGRAMS_PER_PROCESSOR * num_processors(device) // programs
    useful = -(-max_length // LEAST_CHUNK)
    most = max(1, min(wanted, useful, MOST_SPLITS))
    return 1 << (most.bit_length() - 1), LEAST_CHUNK // tile
