"""What layers have in common: a typed call, compiled kernels, and where their parameters come from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.cpu.matmul.groups.weight import GroupedWords
from kernels.triton.matmul.low_bit_weight import LowBitWeight


class Layer(torch.nn.Module):
    """A module whose call returns one tensor.

    forward() takes the step's InputBatch besides its inputs wherever parameters are applied, so that a layer
    may depend on the row of each token. A layer that defines lower() beside forward() can be part of a
    program (worker.lowering.builder): lower() takes the builder and the buffers of the inputs in place of the
    inputs.
    """

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """forward(), without torch's hooks: nothing here uses them, and they cost 1 us per call."""
        output: torch.Tensor = self.forward(*inputs)
        return output

    def use_kernels(self, kernels: RowKernels) -> None:
        """Takes the compiled kernels that fit. Called once, after loading the weights, where they can run."""

    @property
    def can_lower(self) -> bool:
        """True if lower() is defined, here and for all parts, and the compiled kernels fit."""
        parts = (part for part in self.modules() if part is not self and isinstance(part, Layer))
        return hasattr(type(self), "lower") and all(part.can_lower for part in parts)


@dataclass(frozen=True)
class Weight:
    """Where one tensor of a checkpoint goes. A tensor that is fused there has several of these."""

    name: str  # in the checkpoint
    shape: tuple[int, ...]  # in the checkpoint, whole
    target: torch.Tensor  # the view of a parameter that it fills; may have the last dimension in several
    part: tuple[slice, ...] = ()  # what of it goes there: a prefix of its dimensions
    transposed: bool = False  # stored as [in, out]
    order: tuple[int, ...] = ()  # the target's rows are these rows of the part, all or some; empty: all


@dataclass(frozen=True)
class WeightSlot:
    """A matrix whose layer takes values of few bits in place of its parameter."""

    weight: torch.Tensor  # [out, in], or [experts, out, in] of all experts on a CUDA device; not filled yet
    hold: Callable[[GroupedWords], None]  # on a CPU
    hold_low_bits: Callable[[LowBitWeight], None]  # on a CUDA device

    @property
    def inputs(self) -> int:
        """Of an output."""
        return self.weight.shape[-1]


class WeightOwner(Layer, ABC):
    """A layer with parameters of its own."""

    def slots(self) -> Iterator[WeightSlot]:
        """The matrices that may be held in few bits, before they are filled; by default none."""
        return iter(())

    @abstractmethod
    def weights(self, *names: str) -> Iterator[Weight]:
        """The checkpoint's tensors that fill this layer. names: the checkpoint's modules it is made of."""
