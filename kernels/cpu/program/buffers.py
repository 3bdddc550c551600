"""Memory for the activations of a program.

In a step of few tokens a thread that lost its core may lag some layers behind the others
(kernels.cpu.runtime.straggler_recovery). What it then writes must not be read, so the outputs of operations
belong to their layer, and are used again only SETS layers later; but for the residual stream, nothing changes
them in place.
"""

import math
from collections.abc import Sequence

import torch

from kernels.cpu.attention.block_attention import SETS
from kernels.cpu.runtime.arena import zeros

FEW = 64
"""Tokens of a step whose layers are so short that threads do not wait for one that lost its core, and whose
attention waits for memory."""


class ActivationBuffers:
    """Buffers of M rows, or a multiple of it."""

    def __init__(self, most_tokens: int) -> None:
        """most_tokens: M."""
        self.most_tokens = most_tokens
        self.num_sets = SETS if most_tokens <= FEW else 1
        self._sets: list[dict[tuple[int, int, torch.dtype], torch.Tensor]] = [
            {} for _ in range(self.num_sets)
        ]
        self._layers = 0
        self._outputs = 0  # of the layer so far
        self._lasting: list[torch.Tensor] = []
        self._storages: set[int] = set()  # their addresses

    @property
    def set_number(self) -> int:
        """Which set of buffers the current layer uses."""
        return max(0, self._layers - 1) % self.num_sets

    def begin_layer(self) -> None:
        """Outputs belong to the next layer from now on."""
        self._layers += 1
        self._outputs = 0

    def output(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a buffer for an operation of the current layer; before the first one, a lasting()."""
        if not self._layers:
            return self.lasting(shape, dtype)
        size = math.prod(shape)
        key = self._outputs, size, dtype
        self._outputs += 1
        buffers = self._sets[self.set_number]
        if key not in buffers:
            buffers[key] = self._zeros(size, dtype)
        return buffers[key].view(tuple(shape))

    def lasting(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a buffer that no other operation gets."""
        buffer = self._zeros(math.prod(shape), dtype)
        self._lasting.append(buffer)
        return buffer.view(tuple(shape))

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of these buffers, or a view of one."""
        return tensor.untyped_storage().data_ptr() in self._storages

    def _zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        buffer = zeros((size,), dtype)
        self._storages.add(buffer.untyped_storage().data_ptr())
        return buffer
