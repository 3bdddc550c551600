"""A drafter with weights of its own on a CPU, from what --speculate names to a cache with the blocks of the
target's; what its kinds have in common."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.api import BlockKernels, CacheLayout
from kernels.cpu.sampling.api import sampling_kernels
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.cpu.backend import Observe
from worker.memory.kv_cache import KVCache, block_bytes
from worker.models.base import LanguageModel
from worker.sampling.sampler import Sampler
from worker.speculation.models.model_drafter import ModelDrafter
from worker.startup.model import Report, dtype_name, model_bytes
from worker.step.rows import RowTable

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


class Drafting(NamedTuple):
    """A drafter that is ready to draft."""

    drafter: ModelDrafter
    observe: Observe | None
    """What the target's backend calls behind the model; None: nothing."""
    tensors: list[torch.Tensor]
    """The memory of its cache."""


@contextmanager
def names_both(what: str, why: str = "") -> Iterator[None]:
    """A StartupError within it begins with `what`, and says `why` too."""
    try:
        yield
    except StartupError as error:
        raise StartupError(what, error.why + why, error.todo) from error


@dataclass(frozen=True)
class LoadedDrafter(ABC):
    """A drafter with its weights; its cache is not allocated yet."""

    initialize: worker_pb2.Initialize
    what_fails: str  # the first line of an error about the target and the drafter
    model: LanguageModel
    dtype: torch.dtype
    kernels: BlockKernels | None  # what reads and writes its cache; None: torch

    title = ""
    """What it is, in messages."""

    @property
    def host_block_bytes(self) -> int:
        """Bytes of host memory for each block of the swap space. Keys and values are computed again."""
        return 0

    @property
    def block_bytes(self) -> int:
        """Bytes of its cache for each block of the target's."""
        specs = self.model.kv_cache_specs()
        return block_bytes(specs, self.initialize.block_size, self.dtype) + self.host_block_bytes

    def names_both(self) -> AbstractContextManager[None]:
        """A StartupError within it, about memory, names the target and the drafter."""
        share = f"; {self.block_bytes >> 10} KiB of each block are the {self.title}'s"
        return names_both(self.what_fails, share)

    @abstractmethod
    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        """Allocates the cache, and returns what drafts for rows of the target. Raises StartupError."""

    def make_cache(self, num_blocks: int) -> KVCache:
        """Raises StartupError."""
        size, alone = self.initialize.block_size, self.kernels is None
        layout = CacheLayout(size, num_blocks, self.dtype, CPU, each_alone=alone)
        return KVCache(self.model.kv_cache_specs(), layout)

    def make_sampler(self, rows: RowTable) -> Sampler:
        """Returns a sampler without grammars."""
        return Sampler(rows.max_num_rows, rows.vocab_size, CPU, sampling_kernels(torch.get_num_threads()))

    def log(self, what: str, cache_bytes: int) -> None:
        """Logs in one line what drafts."""
        logger.info(
            "drafts by %s in %s: %.0f MiB of weights, %.0f MiB of cache",
            *(what, dtype_name(self.dtype), model_bytes(self.model) / 2**20, cache_bytes / 2**20),
        )


class DrafterPlan(ABC):
    """A drafter that fits the target, before anything is loaded."""

    @abstractmethod
    def capture(self, target: LanguageModel) -> None:
        """Has the target keep what the drafter reads of it. Call it before kernels are chosen. Raises
        StartupError."""

    @abstractmethod
    def load(self, target: LanguageModel, dtype: torch.dtype, report: Report, pinned: bool) -> LoadedDrafter:
        """Loads the weights and chooses kernels. target: without fused layers. dtype: of the target. pinned:
        see kernel_selection. Raises StartupError."""
