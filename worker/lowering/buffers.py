"""Memory for the activations of a lowered program.

In a step of few tokens a thread that lost its core may lag some layers behind the others
(kernels.cpu.runtime.straggler_recovery). What it then writes must not be read, so the outputs of operations
that may be computed twice belong to their layer, and are used again only SETS layers later; nothing changes
them in place. Shared buffers are for all other outputs.
"""

import torch

from kernels.cpu.attention.block_attention import SETS
from kernels.cpu.runtime.arena import zeros

FEW = 64
"""Tokens of a step whose layers are so short that threads do not wait for one that lost its core, and whose
attention waits for memory."""


class ActivationBuffers:
    """Buffers of M rows, one row per token of the step."""

    def __init__(self, most_tokens: int, dtype: torch.dtype = torch.bfloat16) -> None:
        """most_tokens: M. dtype: of the activations."""
        self.most_tokens, self.dtype = most_tokens, dtype
        self.num_sets = SETS if most_tokens <= FEW else 1
        self._shared: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}
        self._sets: list[dict[tuple[int, int, torch.dtype], torch.Tensor]] = [
            {} for _ in range(self.num_sets)
        ]
        self._layers = 0
        self._outputs = 0  # of the layer so far

    @property
    def set_number(self) -> int:
        """Which set of buffers the current layer uses."""
        return max(0, self._layers - 1) % self.num_sets

    def begin_layer(self) -> None:
        """Outputs belong to the next layer from now on."""
        self._layers += 1
        self._outputs = 0

    def output(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns [M, width] for an operation of the current layer. dtype: None for that of activations."""
        dtype = dtype or self.dtype
        key = self._outputs, width, dtype
        self._outputs += 1
        buffers = self._sets[self.set_number]
        if key not in buffers:
            buffers[key] = zeros((self.most_tokens, width), dtype)
        return buffers[key]

    def shared(self, name: str, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns [M, width], the same for all operations that ask for this name and width. dtype: as in
        output()."""
        dtype = dtype or self.dtype
        key = name, width, dtype
        if key not in self._shared:
            self._shared[key] = zeros((self.most_tokens, width), dtype)
        return self._shared[key]
