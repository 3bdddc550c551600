"""Launch parameters of kernels.triton.attention.paged_attention: rows, tile, warps, stages, splits, and why.

Registers and shared memory are as compiled for sm_90, and for 8.0 to 12.0 where these differ (python -m
benchmarks.gpu.compile). No size was chosen by measured time yet.
"""

from dataclasses import dataclass

import torch

from kernels.triton.capabilities import CAPABILITIES, DEFAULT, Capability
from kernels.triton.requirements import next_power_of_2, num_processors

CHUNK = 512
"""KV positions whose results are merged with those of other chunks: those from a multiple of it to the next.
It is a part of the definition of what attention computes, as the tile is."""
PROGRAMS_PER_PROCESSOR = 2
"""Programs are added up to this number."""
MOST_PART_BYTES = 256 << 20
"""Of the results of chunks that programs leave to each other."""


@dataclass(frozen=True)
class TileSizes:
    """Launch parameters of one program."""

    rows: int  # M: query heads times tokens
    tile: int  # KV tokens per iteration
    warps: int
    stages: int


_DEFAULT = CAPABILITIES[DEFAULT]
_HOPPER, _BLACKWELL, _CONSUMER_BLACKWELL = 90, 100, 120


def tile_sizes(
    group: int, head_dim: int, dtype: torch.dtype, quantized: bool = False, capability: Capability = _DEFAULT
) -> TileSizes:
    """Returns the sizes for rows that decode and for prompts alike: what a query gets must not depend on
    which of them computes it. So the tile is the same, the matrix instruction, and how the sum over a tile is
    spread over threads. group: query heads of a KV head.

    64 rows are what wgmma takes, and 4 warps sum a row within one warp. A row that decodes fills a few of
    them; what limits it is memory, and 16 rows take as many instructions, since warps then share a row. 3
    stages of 32 tokens at 128 values are 2 * 16 KB in flight per program, and two programs fit, where a
    processor needs 27 KB at all times to saturate the memory of an H200. Larger tiles spill there, beside the
    accumulator of the chunks before; and so do 64 rows below 9.0 and on 12.0, which have no such instruction,
    and at a head size of 256 on 10.0. No matrix unit computes float32 without rounding. quantized: the cache
    has 8 bits a value."""
    dim, number = next_power_of_2(head_dim), capability.number
    if dtype == torch.float32:
        rows = max(32 if dim <= 128 else 16, next_power_of_2(group))
        return TileSizes(rows, 16, 8, 1 if quantized else 2)
    grouped = _HOPPER <= number < (_CONSUMER_BLACKWELL if dim <= 128 else _BLACKWELL)
    rows = max(64 if grouped else 32, next_power_of_2(group))
    stages = 3 if grouped else 2
    if dim <= 128:
        return TileSizes(rows, 32 if grouped and dim > 64 else 64, max(4, rows // 16), stages)
    return TileSizes(rows, 16 if grouped else 32, 8, stages)


def most_registers(sizes: TileSizes, head_dim: int, dtype: torch.dtype, capability: Capability) -> int | None:
    """Returns what a thread may have; None: what the assembler chooses. It changes no bit. Without a bound
    the assembler spills a few to fit a third program: in float32, and for heads of up to 64 on 8.6 and
    8.9."""
    if dtype == torch.float32:
        return 128 if sizes.rows <= 32 else 255
    return 255 if head_dim <= 64 and capability.number in (86, 89) else None


def num_chunks(max_length: int) -> int:
    """Returns how many chunks a row of this length has."""
    return -(-max_length // CHUNK)


def choose_splits(programs: int, tokens: int, bytes_per_chunk: int, chunks: int, device: torch.device) -> int:
    """Returns how many programs share the chunks of a row; 1: one program merges them itself.

    programs: without splits. tokens: of the rows. bytes_per_chunk: of the results of one token. chunks: of
    the longest row that there may be. The results do not depend on it."""
    if tokens * chunks * bytes_per_chunk > MOST_PART_BYTES:
        return 1
    return max(1, min(PROGRAMS_PER_PROCESSOR * num_processors(device) // programs, chunks))
