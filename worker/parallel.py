"""The tensor-parallel group: this worker's rank, and the two collectives that layers need.

A group of one works today, and its collectives do nothing. Layers are written against the group,
so that more ranks are a matter of sizes here and of a torch.distributed backend below.
"""

import math
from dataclasses import dataclass

import torch

from kernels.api import Arena
from kernels.triton import requirements
from pagewire.errors import StartupError


@dataclass(frozen=True)
class ParallelGroup:
    """Rank and size; `split` and `slice` tell which part of a dimension this rank holds."""

    rank: int = 0
    size: int = 1

    def split(self, length: int) -> int:
        """Returns the length of this rank's part of a dimension that is split evenly."""
        assert length % self.size == 0, (length, self.size)
        return length // self.size

    def slice(self, length: int) -> slice:
        """Returns the range of this rank's part."""
        part = self.split(length)
        return slice(self.rank * part, (self.rank + 1) * part)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Returns the sum over all ranks, on every rank."""
        assert self.size == 1, "a group of several ranks needs a backend"
        return partial

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the parts of all ranks side by side along the last dimension, on every rank."""
        assert self.size == 1, "a group of several ranks needs a backend"
        return part


@dataclass
class Capacity:
    """What the parameters of a model may have in all; one that is too large is refused while it is made."""

    values: int
    matrices: int
    has: str  # what has so much, for messages

    def take(self, shape: tuple[int, ...]) -> None:
        """Counts one parameter. Raises StartupError where no more is left."""
        self.values, self.matrices = self.values - math.prod(shape), self.matrices - 1
        if min(self.values, self.matrices) < 0:
            raise StartupError(
                "cannot load the model's weights",
                f"config.json asks for far more weights than {self.has}",
                "is config.json that of these weights?",
            )


@dataclass(frozen=True)
class Placement:
    """Where the parameters of a model are allocated, in which dtype, and for which rank."""

    dtype: torch.dtype
    device: torch.device
    group: ParallelGroup = ParallelGroup()
    arena: Arena | None = None
    """Holds matrices, on a CPU; None: torch allocates them."""
    later: bool = False
    """Matrices stay on torch's meta device until loading knows which of them are needed."""
    capacity: Capacity | None = None
    """Counts the parameters; None: they may be as large as they like."""

    @property
    def stacks_experts(self) -> bool:
        """Whether the weights of a layer's experts, or heads, are one tensor, as Triton's kernels read
        them."""
        return self.device.type == "cuda" or requirements.INTERPRETED

    def empty(self, *shape: int) -> torch.nn.Parameter:
        """Returns a parameter that loading fills. Raises StartupError beyond the capacity."""
        if self.capacity is not None:
            self.capacity.take(shape)
        if self.later and len(shape) >= 2:
            tensor = torch.empty(shape, dtype=self.dtype, device="meta")
        elif self.arena is not None and len(shape) == 2:
            tensor = self.arena.matrix(*shape, self.dtype)
        else:
            tensor = torch.empty(shape, dtype=self.dtype, device=self.device)
        return torch.nn.Parameter(tensor, requires_grad=False)
