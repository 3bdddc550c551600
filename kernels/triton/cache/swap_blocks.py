"""kernels.ops.attention.block_copies on CUDA: blocks are gathered on the device into one buffer, which
crosses the host link in as few transfers as there are runs of neighbouring host blocks; and back.

A block of the cache is in one piece per plane (2 per layer), a host block is one piece. Without the buffer
each piece would be a transfer of its own, of 32 KB at the 8B shape: too small to fill the link. The host's
side is pinned, so that all of this is queued on the current stream in order and nothing waits; a later step
that writes to a freed block comes after the copy that reads it.

Bytes moved: P * C blocks of a plane once over the link, twice more in device memory. The buffer has
BUFFER_BYTES at most, about a millisecond of a PCIe 5 link, in which a launch does not matter; it is used for
one part after the other. Speed: not yet measured on a GPU.
"""

from collections.abc import Iterator, Sequence

import torch

from kernels.triton.cache.copy_blocks import gather_blocks, scatter_blocks
from kernels.triton.requirements import BUFFER_BYTES


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
