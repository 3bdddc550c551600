"""Copies whole KV blocks of all layers to host memory and back: what preemption does by swap.

    out:    host[targets[c]] = cache[:, sources[c]]      for all c
    in:     cache[:, targets[c]] = host[sources[c]]      for all c

cache:            [P, B, ...]; P: planes, such as the keys of one layer
host:             [H, P, ...], on the CPU, of the cache's dtype; a block is one piece of memory,
                  so that it crosses the host link in one transfer
sources, targets: block ids [C]; all targets are different
Bytes moved: P * C blocks of a plane, once over the host link.
"""

from collections.abc import Sequence

import torch

from kernels.triton.requirements import uses_triton


def swap_out_reference(
    cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """The formula, at once."""
    host[torch.tensor(targets)] = cache[:, torch.tensor(sources)].movedim(1, 0).to(host.device)


def swap_in_reference(
    cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]
) -> None:
    """The formula, at once."""
    cache[:, torch.tensor(targets)] = host[torch.tensor(sources)].movedim(0, 1).to(cache.device)


def swap_out(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies out. Dispatches on the device: on CUDA this only queues the copies, in the order of the
    stream, if `host` is pinned."""
    if uses_triton(cache):
        from kernels.triton.cache import swap_blocks as gpu

        return gpu.swap_out(cache, host, sources, targets)
    for source, target in zip(sources, targets, strict=True):
        host[target].copy_(cache[:, source])


def swap_in(cache: torch.Tensor, host: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copies back. As swap_out()."""
    if uses_triton(cache):
        from kernels.triton.cache import swap_blocks as gpu

        return gpu.swap_in(cache, host, sources, targets)
    for source, target in zip(sources, targets, strict=True):
        cache[:, target].copy_(host[source])
