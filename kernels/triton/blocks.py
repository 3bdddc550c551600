"""kernels.ops.attention.block_copies on CUDA: blocks of all layers go through a buffer on the device.

    gather_blocks    buffer[c, p] = cache[p, blocks[c]]
    scatter_blocks   cache[p, blocks[c]] = buffer[c, p]
    copy_blocks      gathers, then scatters: all sources are read before anything is written, as a block
                     may be the source of one copy and the target of another
    swap_out, _in    the buffer crosses the host link in as few transfers as there are runs of neighbouring
                     host blocks

cache: [P, B, ...] contiguous, any dtype; P: planes, such as the keys of one layer; blocks: [C] integers,
targets all different; buffer: [C, P, ...], where a block is one piece, as a host block is. Without the buffer
each piece, of one plane, would be a transfer of its own, of 32 KB at the 8B shape: too small to fill the
link. The host's side is pinned, so that all of this is queued on the current stream in order and nothing
waits; a later step that writes to a freed block comes after the copy that reads it.

Bytes moved: 2 * C blocks of all layers per launch; copies twice that; a swap once more over the link. Its
buffer has BUFFER_BYTES at most, about a millisecond of a PCIe 5 link, in which a launch does not matter; it
is used for one part after the other. Speed: not yet measured on a GPU.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import BUFFER_BYTES

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


def swap_out(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies blocks of cache [P, B, ...] to host blocks [H, P, ...]."""
    for part in _parts(len(sources), host):
        buffer = gather_blocks(cache, _on_device(sources[part], cache.device))
        for begin, first, count in _runs(targets[part]):
            host[first : first + count].copy_(buffer[begin : begin + count], non_blocking=True)


def swap_in(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies host blocks [H, P, ...] to blocks of cache [P, B, ...]."""
    for part in _parts(len(sources), host):
        ids = targets[part]
        buffer = torch.empty((len(ids), *host.shape[1:]), dtype=cache.dtype, device=cache.device)
        for begin, first, count in _runs(sources[part]):
            buffer[begin : begin + count].copy_(host[first : first + count], non_blocking=True)
        scatter_blocks(cache, buffer, _on_device(ids, cache.device))


def _parts(count: int, host: torch.Tensor) -> Iterator[slice]:
    """Yields slices of `count` blocks that fit into the buffer, at least one block each."""
    if count:
        most = max(1, BUFFER_BYTES // host[0].nbytes)
        yield from (slice(begin, min(begin + most, count)) for begin in range(0, count, most))


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields runs of consecutive ids: (index, first id, length)."""
    begin = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield begin, ids[begin], end - begin
            begin = end


def _on_device(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Uploads ids as [C] int64, without waiting for the device."""
    values = torch.tensor(ids, dtype=torch.int64)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
