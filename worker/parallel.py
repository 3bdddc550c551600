"""Groups of ranks: which rank this is, what it holds of a dimension or of the layers, and how ranks exchange
results.

Ranks copy, and each adds for itself: partial sums of all ranks are gathered and added as a binary tree in the
order of ranks, in float32. The library sums of a communication backend have an order of their own, which may
depend on sizes. All that is not a sum over ranks is copied whole, so that it has the bits of one rank.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels.api import Arena
from kernels.cpu.runtime.rank_link import RankLink
from kernels.ops.attention.ragged import Integers
from kernels.triton import requirements
from pagewire.errors import StartupError


@dataclass(frozen=True)
class ParallelGroup(ABC):
    """The ranks that compute one model together. All call the same methods in the same order, with tensors of
    the same shape."""

    rank: int = 0
    size: int = 1
    """A power of two, where the ranks share layers."""

    @property
    def link(self) -> RankLink | None:
        """By which programs exchange (kernels.cpu.program); None: they cannot."""
        return None

    @abstractmethod
    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Returns the tensors of all ranks in the order of ranks, on every rank. They are copies."""

    def send(self, x: torch.Tensor) -> None:
        """Copies a tensor from rank 0 of two to the other one, which receives it."""
        self.gather(x)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns the tensor that rank 0 of two sends, which has this shape."""
        return self.gather(torch.empty(shape, dtype=dtype))[0]

    def has_arrived(self) -> bool:
        """Returns whether receive() would not wait, where that is known."""
        return True

    def split(self, length: int) -> int:
        """Returns the length of this rank's part of a dimension that is split evenly."""
        assert length % self.size == 0, (length, self.size)
        return length // self.size

    def slice(self, length: int) -> slice:
        """Returns the range of this rank's part."""
        part = self.split(length)
        return slice(self.rank * part, (self.rank + 1) * part)

    def units(self, count: int) -> range:
        """Returns which of so many units, such as KV heads, this rank holds. With more ranks than units,
        several ranks in a row hold the same one."""
        assert count % self.size == 0 or self.size % count == 0, (count, self.size)
        first = self.rank * count // self.size
        return range(first, first + max(1, count // self.size))

    def owned(self, rank: int, count: int) -> range:
        """Returns which of so many things, at least one per rank, a rank alone has: some may have one more
        than others."""
        return range(rank * count // self.size, (rank + 1) * count // self.size)

    def stacked(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all ranks as one, [ranks, ...], on every rank."""
        return torch.stack(list(self.gather(part)))

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the float32 tensors of all ranks, on every rank: neighbours are added, then
        neighbouring sums, until one is left. Of int32, too, which is exact in any order."""
        assert partial.dtype in (torch.float32, torch.int32)
        parts = list(self.gather(partial))
        while len(parts) > 1:
            parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def largest(self, part: torch.Tensor) -> torch.Tensor:
        """Returns the largest of the values of all ranks at each index, on every rank; NaN where any is."""
        return self.stacked(part).amax(0)

    def from_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of rank 0, on every rank; those of the others have its shape and dtype."""
        return self.gather(tensor)[0]

    def tell(self, numbers: Integers) -> Integers:
        """from_first(), of an array of integers."""
        found: Integers = self.from_first(torch.from_numpy(numbers)).numpy()
        return found

    def least(self, count: int) -> int:
        """Returns the smallest of the counts of all ranks, on every rank."""
        return min(int(each) for each in self.gather(torch.tensor([count])))

    def gather_columns(self, part: torch.Tensor, units: int = 0) -> torch.Tensor:
        """Returns the parts of all ranks side by side along the last dimension, on every rank. units: that
        are split as units() says, so that each stands there once; 0: each rank has its own part."""
        parts = self.gather(part)
        return torch.cat(list(parts[:: max(1, self.size // units) if units else 1]), dim=-1)


class OneRank(ParallelGroup):
    """A group of this rank alone."""

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        return (part,)


ONE_RANK = OneRank()


@dataclass(frozen=True)
class Stage:
    """The consecutive layers that this rank has, of a model whose layers are divided among stages.

    Stage 0 has the embedding and the head besides, and samples; the last one has the last norm. A rank gets
    hidden states from one rank of the stage before, and stage 0 gets those of the last stage back.
    """

    number: int = 0
    starts: tuple[int, ...] = ()
    """The first layer of each stage, and behind the last one; empty: one stage has all layers."""
    before: ParallelGroup = ONE_RANK
    """The rank that sends to this one, and this one."""
    behind: ParallelGroup = ONE_RANK
    """This rank, and the one that it sends to."""

    @property
    def count(self) -> int:
        """How many stages there are."""
        return max(1, len(self.starts) - 1)

    @property
    def is_first(self) -> bool:
        """Whether it has the embedding and the head."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the last norm."""
        return self.number == self.count - 1

    @property
    def layers(self) -> slice:
        """Those of this stage."""
        return slice(*self.starts[self.number : self.number + 2]) if self.starts else slice(None)

    def has(self, layer: int) -> bool:
        """Returns whether a layer is of this stage."""
        return not self.starts or self.layers.start <= layer < self.layers.stop


ONE_STAGE = Stage()


def divide_layers(sizes: Sequence[int], beside: int, stages: int, needed: Sequence[int]) -> tuple[int, ...]:
    """Returns the first layer of each stage, and behind the last one: each stage has at least one of the
    needed layers, and the end of each is where its share of all sizes comes nearest. sizes: of the layers.
    beside: of what the first stage has besides. needed: in order, at least as many as stages."""
    ends, total = [0], beside + sum(sizes)
    sums = [beside + sum(sizes[:count]) for count in range(len(sizes) + 1)]
    for stage in range(1, stages):
        wanted, last = total * stage / stages, needed[stage - stages]
        first = next(layer for layer in needed if layer >= ends[-1]) + 1
        ends.append(min(range(first, last + 1), key=lambda end: abs(sums[end] - wanted)))
    return (*ends, len(sizes))


@dataclass(frozen=True)
class Groups:
    """The ranks of a worker, as this one sees them."""

    world: ParallelGroup = ONE_RANK
    """All of them, stage after stage."""
    tensor: ParallelGroup = ONE_RANK
    """Those of this rank's stage, which share its layers."""
    stage: Stage = ONE_STAGE

    def describe(self, num_layers: int) -> str:
        """Returns what this rank has of a model, to begin a line of the log; "": all of it."""
        world, stage = self.world, self.stage
        if stage.count == 1:
            return f"rank {world.rank} of {world.size}: " if world.size > 1 else ""
        layers = stage.layers
        name = f"rank {world.rank} of {world.size}, stage {stage.number} of {stage.count}"
        return f"{name} (layers {layers.start} to {layers.stop - 1} of {num_layers}): "


ALONE = Groups()


@dataclass(frozen=True)
class Shares:
    """Consecutive things, such as rows of a table, of which each rank has some."""

    group: ParallelGroup
    starts: tuple[int, ...]
    """The first one of each rank, and behind the last one."""

    @property
    def held(self) -> range:
        """Those of this rank."""
        return range(*self.starts[self.group.rank : self.group.rank + 2])

    @property
    def largest(self) -> int:
        """The most that a rank has."""
        return max(end - start for start, end in zip(self.starts, self.starts[1:], strict=False))


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
    group: ParallelGroup = ONE_RANK
    stage: Stage = ONE_STAGE
    arena: Arena | None = None
    """Holds matrices, on a CPU; None: torch allocates them."""
    later: bool = False
    """Matrices stay on torch's meta device until loading knows which of them are needed."""
    measures_rows: bool = False
    """Row layers of several ranks keep the largest value of each output with all of its inputs, from which
    integers of 8 bits follow."""
    capacity: Capacity | None = None
    """Counts the parameters; None: they may be as large as they like."""

    @property
    def whole(self) -> "Placement":
        """The placement of what every rank holds, and computes, whole."""
        return replace(self, group=ONE_RANK)

    def held(self, is_held: bool) -> "Placement":
        """Returns the placement of what this rank has, or else of what has only a name here, until
        StagedModel.keep()."""
        return self if is_held else replace(self, device=torch.device("meta"), arena=None)

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
