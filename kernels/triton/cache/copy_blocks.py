"""kernels.ops.attention.copy_blocks on CUDA, and the device's side of swapping: blocks of all layers go
through a buffer.

    gather_blocks    buffer[c, l] = cache[l, blocks[c]]       l: layer, keys or values
    scatter_blocks   cache[l, blocks[c]] = buffer[c, l]
    copy_blocks      gathers, then scatters: all sources are read before anything is written, as a block
                     may be the source of one copy and the target of another

cache: [layers, 2, B, K, S, D] contiguous, any dtype; blocks: [C] integers, targets all different;
buffer: [C, layers, 2, K, S, D], where a block is one piece: what goes to the host and comes from there is
one transfer per block or for all. Bytes moved: 2 * C blocks of all layers per launch; copies twice that.
Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Values of a program: 4 loads of 16 bytes per thread at two bytes a value, all in flight together."""


@triton.jit
def _move_kernel(
    cache,  # [L, B, X]; L: layers, keys and values; X: values of a block in one of them
    buffer,  # [C, L, X]
    blocks,  # [C]
    num_blocks,
    width,
    GATHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    copy, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    block = tl.load(blocks + copy).to(tl.int64)
    in_cache = cache + (layer * num_blocks + block) * width + column
    in_buffer = buffer + (copy * tl.num_programs(1) + layer) * width + column
    if GATHER:
        tl.store(in_buffer, tl.load(in_cache, mask=inside), mask=inside)
    else:
        tl.store(in_cache, tl.load(in_buffer, mask=inside), mask=inside)


def gather_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """A new buffer [C, layers, 2, K, S, D] on the device."""
    layers, two, _, *shape = cache.shape
    buffer = torch.empty((blocks.shape[0], layers, two, *shape), dtype=cache.dtype, device=cache.device)
    _launch(cache, buffer, blocks, True)
    return buffer


def scatter_blocks(cache: torch.Tensor, buffer: torch.Tensor, blocks: torch.Tensor) -> None:
    """The reverse."""
    _launch(cache, buffer, blocks, False)


def copy_blocks(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies in place."""
    scatter_blocks(cache, gather_blocks(cache, sources), targets)


def _launch(cache: torch.Tensor, buffer: torch.Tensor, blocks: torch.Tensor, gather: bool) -> None:
    layers, two, num_blocks, *shape = cache.shape
    width = shape[0] * shape[1] * shape[2]
    assert cache.is_contiguous() and buffer.is_contiguous() and blocks.is_contiguous()
    assert buffer.shape == (blocks.shape[0], layers, two, *shape) and buffer.dtype == cache.dtype
    if blocks.shape[0]:
        grid = blocks.shape[0], layers * two, triton.cdiv(width, BLOCK)
        _move_kernel[grid](cache, buffer, blocks, num_blocks, width, gather, BLOCK, num_warps=4)
