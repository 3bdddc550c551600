"""What worker.cpu.load needs of a drafter with weights of its own, whatever it is."""

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from worker.cpu.backend import Observe
from worker.draft_model.drafter import ModelDrafter
from worker.models.base import LanguageModel
from worker.step.rows import RowTable


class Drafting(NamedTuple):
    """A drafter that is ready to draft."""

    drafter: ModelDrafter
    observe: Observe | None
    """What the target's backend calls behind the model; None: nothing."""
    tensors: list[torch.Tensor]
    """The memory of its cache."""


class LoadedDrafter(Protocol):
    """Its weights are there; its cache is not yet."""

    @property
    def block_bytes(self) -> int:
        """Bytes of its cache for each block of the target's."""
        ...

    @property
    def host_block_bytes(self) -> int:
        """Bytes of host memory for each block of the swap space."""
        ...

    def names_both(self) -> AbstractContextManager[None]:
        """A StartupError within it, about memory, names the target and the drafter."""
        ...

    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        """Allocates the cache, and returns what drafts for rows of the target."""
        ...
