"""Copies whole KV blocks of all layers: what copy-on-write does before a shared block is written.

    cache[:, targets[c]] = cache[:, sources[c]]      for all c at once

cache:            [P, B, ...], contiguous; P: planes, such as the keys of one layer
sources, targets: [C] int64; all targets are different; all sources are read before anything is written
Bytes moved: 2 * P * C blocks of a plane.
"""

import torch

from kernels.triton.requirements import uses_triton


def copy_blocks_reference(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """The formula, block by block, reading from a copy of the cache."""
    before = cache.clone()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        cache[:, target] = before[:, source]


def copy_blocks(cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies in place. Dispatches on the device."""
    if uses_triton(cache):
        from kernels.triton.cache import copy_blocks as gpu

        return gpu.copy_blocks(cache, sources, targets)
    cache.index_copy_(1, targets, cache.index_select(1, sources))
