"""What layers have in common: a typed call, and where their parameters come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels


class Layer(torch.nn.Module):
    """A module whose call gives one tensor."""

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """forward(), without torch's hooks: nothing here uses them, and they cost 1 us per call."""
        output: torch.Tensor = self.forward(*inputs)
        return output

    def use_kernels(self, kernels: RowKernels) -> None:
        """Once the weights are loaded, where the CPU kernels can run: takes those that fit. Here none."""


@dataclass(frozen=True)
class Weight:
    """Where one tensor of a checkpoint goes. A tensor that is fused there has several of these."""

    name: str  # in the checkpoint
    shape: tuple[int, ...]  # in the checkpoint, whole
    target: torch.Tensor  # the view of a parameter that it fills
    part: tuple[slice, ...] = ()  # what of it goes there: a prefix of its dimensions
    transposed: bool = False  # stored as [in, out]


class WeightOwner(Layer):
    """A layer with parameters of its own."""

    def weights(self, *names: str) -> Iterator[Weight]:
        """The checkpoint's tensors that fill it. names: the modules that it is made of there."""
        raise NotImplementedError
