"""A tensor-parallel group whose ranks are processes of one host that share memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernels.api import RankLink
from worker.cpu.rank_memory import Ranks
from worker.parallel import ParallelGroup


@dataclass(frozen=True)
class ProcessGroup(ParallelGroup):
    """This process is a rank; see worker.cpu.rank_memory."""

    ranks: Ranks = field(kw_only=True)

    @property
    def link(self) -> RankLink:
        return self.ranks.link

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        """Raises RankGone."""
        part = part.contiguous()
        parts = torch.empty((self.size, *part.shape), dtype=part.dtype)
        self.ranks.exchange(part.data_ptr(), part.nbytes, parts.data_ptr())
        return parts.unbind(0)
