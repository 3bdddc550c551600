"""Groups whose ranks are processes: of one host (worker.cpu.rank_memory), or of several
(worker.cpu.rank_hosts)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernels.cpu.runtime.rank_link import RankLink
from worker.cpu.rank_memory import RanksOfPart
from worker.cpu.rank_peers import Exchange, RankPeers
from worker.parallel import ONE_RANK, Groups, ParallelGroup, Stage


@dataclass(frozen=True)
class ProcessGroup(ParallelGroup):
    """This process is a rank; see worker.cpu.rank_peers."""

    ranks: Exchange = field(kw_only=True)

    @property
    def link(self) -> RankLink | None:
        return self.ranks.link

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Raises RankGone."""
        part = part.contiguous()
        parts = torch.empty((self.size, *part.shape), dtype=part.dtype)
        self.ranks.exchange(part.data_ptr(), part.nbytes, parts.data_ptr())
        return parts.unbind(0)

    def send(self, x: torch.Tensor) -> None:
        """Raises RankGone."""
        if not isinstance(self.ranks, RanksOfPart):
            return super().send(x)
        x = x.contiguous()
        self.ranks.send(x.data_ptr(), x.nbytes)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Raises RankGone."""
        if not isinstance(self.ranks, RanksOfPart):
            return super().receive(shape, dtype)
        out = torch.empty(shape, dtype=dtype)
        self.ranks.receive(out.data_ptr(), out.nbytes)
        return out

    def has_arrived(self) -> bool:
        """Raises RankGone."""
        return not isinstance(self.ranks, RanksOfPart) or self.ranks.has_arrived()


def make_groups(ranks: RankPeers, tensor: int, starts: tuple[int, ...]) -> Groups:
    """Returns the groups of this rank. tensor: ranks that share each layer. starts: of the stages' layers,
    see Stage; empty: there is one stage."""
    rank, size = ranks.rank, ranks.size
    world = ProcessGroup(rank, size, ranks=ranks)
    if not starts:
        return Groups(world, world)

    def part(*members: int) -> ProcessGroup:
        return ProcessGroup(members.index(rank), len(members), ranks=ranks.parts[members])

    number = rank // tensor
    before, behind = part((rank - tensor) % size, rank), part(rank, (rank + tensor) % size)
    own = part(*range(number * tensor, (number + 1) * tensor)) if tensor > 1 else ONE_RANK
    return Groups(world, own, Stage(number, starts, before, behind))
