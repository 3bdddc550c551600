"""A tensor-parallel group whose ranks are processes: of one host (worker.cpu.rank_memory), or of several
(worker.cpu.rank_hosts)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernels.cpu.runtime.rank_link import RankLink
from worker.cpu.rank_peers import RankPeers
from worker.parallel import ParallelGroup


@dataclass(frozen=True)
class ProcessGroup(ParallelGroup):
    """This process is a rank; see worker.cpu.rank_peers."""

    ranks: RankPeers = field(kw_only=True)

    @property
    def link(self) -> RankLink | None:
        return self.ranks.link

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Raises RankGone."""
        part = part.contiguous()
        parts = torch.empty((self.size, *part.shape), dtype=part.dtype)
        self.ranks.exchange(part.data_ptr(), part.nbytes, parts.data_ptr())
        return parts.unbind(0)
