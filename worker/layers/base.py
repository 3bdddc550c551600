"""What layers have in common: a typed call, operations, and where their parameters come from."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.api import Ops, WeightForms, default_ops


class Layer(torch.nn.Module):
    """A module whose call returns one tensor.

    forward() takes the step's InputBatch besides its inputs wherever parameters are applied, so that a layer
    may depend on the row of each token. It computes by `ops` alone, with views between them: so it runs on
    any platform, and can be recorded as a program (kernels.cpu.program), where the tensors are buffers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Ops = default_ops()

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """forward(), without torch's hooks: nothing here uses them, and they cost 1 us per call."""
        output: torch.Tensor = self.forward(*inputs)
        return output

    def compute_by(self, ops: Ops) -> None:
        """Has this layer, and all within it, compute by these operations."""
        for layer in self.modules():
            if isinstance(layer, Layer):
                layer.ops = ops

    def pack(self, forms: WeightForms) -> None:
        """Brings weights into the form in which the CPU's kernels read them. Called once, after loading."""


@dataclass(frozen=True)
class Weight:
    """Where one tensor of a checkpoint goes. A tensor that is fused there has several of these."""

    name: str  # in the checkpoint
    shape: tuple[int, ...]  # in the checkpoint, whole
    target: torch.Tensor  # the view of a parameter that it fills; may have the last dimension in several
    part: tuple[slice, ...] = ()  # what of it goes there: a prefix of its dimensions
    transposed: bool = False  # stored as [in, out]
    order: tuple[int, ...] = ()  # the target's rows are these rows of the part, all or some; empty: all
    largest: torch.Tensor | None = None  # [out] float32: gets the largest absolute values of outputs with all
    # inputs, of which the part has some; None: they are not needed


@dataclass(frozen=True)
class Split:
    """A dimension of which a rank holds some ranges."""

    length: int
    held: tuple[slice, ...]

    @property
    def num_held(self) -> int:
        """Values that this rank holds."""
        return sum(part.stop - part.start for part in self.held)


class WeightOwner(Layer):
    """A layer with parameters of its own."""

    order: tuple[int, ...] = ()  # of Weight
    split: "Split | None" = None  # of the first dimension of all parameters; None: each rank holds it whole

    def weights(self, *names: str) -> Iterator[Weight]:
        """The checkpoint's tensors that fill this layer: weight and bias of one module, those that are
        parameters. names: the checkpoint's modules it is made of."""
        (name,) = names
        for kind in ("weight", "bias"):
            target = getattr(self, kind, None)
            if isinstance(target, torch.nn.Parameter):
                yield from self._filling(f"{name}.{kind}", target)

    def elsewhere(self, *names: str) -> Iterator[str]:
        """The checkpoint's tensors of this layer that other ranks alone hold. names: as for weights()."""
        yield from ()

    def _filling(self, name: str, target: torch.nn.Parameter) -> Iterator[Weight]:
        """name: of a tensor of the checkpoint, whose parts fill a parameter."""
        if self.split is None:
            yield Weight(name, tuple(target.shape), target, order=self.order)
            return
        first, shape = 0, (self.split.length, *target.shape[1:])
        for part in self.split.held:
            length = part.stop - part.start
            yield Weight(name, shape, target[first : first + length], (part,), order=self.order)
            first += length


class NamedTensors(WeightOwner):
    """A layer whose parameters have full names in the checkpoint, in the order in which they are made."""

    def weights(self, *names: str) -> Iterator[Weight]:
        """names: of the tensors."""
        for name, target in zip(names, self.parameters(), strict=True):
            yield from self._filling(name, target)
