"""Copies whole KV blocks of all layers: what copy-on-write does before a shared block is written, and what
preemption does by swap, to host memory and back.

    copy:   cache[:, targets[c]] = cache[:, sources[c]]      for all c at once
    out:    host[targets[c]] = cache[:, sources[c]]          for all c
    in:     cache[:, targets[c]] = host[sources[c]]          for all c

cache:            [P, B, ...], contiguous; P: planes, such as the keys of one layer
host:             [H, P, ...], on the CPU, of the cache's dtype; a block is one piece of memory,
                  so that it crosses the host link in one transfer
sources, targets: block ids [C]; all targets are different; a copy reads all sources before it writes
Bytes moved: 2 * P * C blocks of a plane; a swap P * C, once over the host link.
"""

from collections.abc import Sequence

import torch

from kernels.triton.requirements import uses_triton


def copy_blocks(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies in place. Dispatches on the device."""
    if uses_triton(cache):
        from kernels.triton import blocks as gpu

        return gpu.copy_blocks(cache, sources, targets)
    cache.index_copy_(1, targets, cache.index_select(1, sources))


def swap_out(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies out. Dispatches on the device: on CUDA this only queues the copies, in the order of the
    stream, if `host` is pinned."""
    if uses_triton(cache):
        from kernels.triton import blocks as gpu

        return gpu.swap_out(cache, host, sources, targets)
    for source, target in zip(sources, targets, strict=True):
        host[target].copy_(cache[:, source])


def swap_in(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies back. As swap_out()."""
    if uses_triton(cache):
        from kernels.triton import blocks as gpu

        return gpu.swap_in(cache, host, sources, targets)
    for source, target in zip(sources, targets, strict=True):
        cache[:, target].copy_(host[source])
