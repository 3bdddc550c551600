"""kernels.ops.attention.block_copies on CUDA, and the device's part of swapping: blocks of all layers go
through a buffer.

    gather_blocks    buffer[c, p] = cache[p, blocks[c]]
    scatter_blocks   cache[p, blocks[c]] = buffer[c, p]
    copy_blocks      gathers, then scatters: all sources are read before anything is written, as a block
                     may be the source of one copy and the target of another

cache: [P, B, ...] contiguous, any dtype; P: planes, such as the keys of one layer; blocks: [C] integers,
targets all different; buffer: [C, P, ...], where a block is one piece: what goes to the host and comes from
there is one transfer per block or for all. Bytes moved: 2 * C blocks of all layers per launch; copies twice
that. Speed: not yet measured on a GPU.
"""

import math

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Values per program: 4 loads of 16 bytes per thread at two bytes a value, all in flight together."""


@triton.jit
def _move_kernel(
    cache,  # [P, B, X]; X: values of a block in one plane
    buffer,  # [C, P, X]
    blocks,  # [C]
    num_blocks,
    width,
    GATHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    copy, plane = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    block = tl.load(blocks + copy).to(tl.int64)
    in_cache = cache + (plane * num_blocks + block) * width + column
    in_buffer = buffer + (copy * tl.num_programs(1) + plane) * width + column
    if GATHER:
        tl.store(in_buffer, tl.load(in_cache, mask=inside), mask=inside)
    else:
        tl.store(in_cache, tl.load(in_buffer, mask=inside), mask=inside)


def gather_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Gathers blocks [C] of cache [P, B, ...] into a new buffer [C, P, ...] on the device."""
    planes, _, *shape = cache.shape
    buffer = torch.empty((blocks.shape[0], planes, *shape), dtype=cache.dtype, device=cache.device)
    _launch(cache, buffer, blocks, True)
    return buffer


def scatter_blocks(cache: torch.Tensor, buffer: torch.Tensor, blocks: torch.Tensor) -> None:
    """Scatters a buffer [C, P, ...] to blocks [C] of the cache."""
    _launch(cache, buffer, blocks, False)


def copy_blocks(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies blocks [C] to blocks [C] within the cache."""
    scatter_blocks(cache, gather_blocks(cache, sources), targets)


def _launch(cache: torch.Tensor, buffer: torch.Tensor, blocks: torch.Tensor, gather: bool) -> None:
    planes, num_blocks, *shape = cache.shape
    width = math.prod(shape)
    assert cache.is_contiguous() and buffer.is_contiguous() and blocks.is_contiguous()
    assert buffer.shape == (blocks.shape[0], planes, *shape) and buffer.dtype == cache.dtype
    if blocks.shape[0]:
        grid = blocks.shape[0], planes, triton.cdiv(width, BLOCK)
        _move_kernel[grid](cache, buffer, blocks, num_blocks, width, gather, BLOCK, num_warps=4)
