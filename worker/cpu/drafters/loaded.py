"""What worker.cpu.load needs of a drafter with weights of its own, whatever it is."""

from contextlib import AbstractContextManager
from typing import Protocol

from worker.cpu.backend import Observe
from worker.draft_model.drafter import ModelDrafter
from worker.models.base import LanguageModel
from worker.step.rows import RowTable


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

    def make_drafter(
        self, rows: RowTable, num_host_blocks: int, target: LanguageModel
    ) -> tuple[ModelDrafter, Observe | None]:
        """Allocates the cache, and returns what drafts for rows of the target, and what the target's backend
        calls behind the model; None: nothing."""
        ...
