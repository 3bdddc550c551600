"""A draft model on a CPU: its weights, its cache with the blocks of the target's, and what drafts with it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.api import BlockKernels, CacheLayout
from kernels.cpu.sampling.api import sampling_kernels
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.speculation import Speculation
from worker.config.hf_config import ModelConfig
from worker.cpu.backend import CpuBackend
from worker.cpu.drafters.loaded import Drafting
from worker.draft_model.checks import check_draft_model, what_fails
from worker.draft_model.drafter import ModelDrafter
from worker.memory.kv_cache import KVCache, block_bytes
from worker.memory.swap_space import SwapSpace
from worker.models.base import LanguageModel
from worker.sampling.sampler import Sampler
from worker.speculation.draft_slots import DraftSlots
from worker.startup.implementation import choose_implementation
from worker.startup.model import dtype_name, model_bytes
from worker.step.rows import RowTable

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


def read_draft_model(
    initialize: worker_pb2.Initialize,
    speculation: Speculation | None,
    target: ModelConfig,
    max_model_len: int,
) -> tuple[worker_pb2.Initialize, ModelConfig] | None:
    """Returns what a worker of the draft model alone would be told, and the model's configuration; None:
    there is no draft model. Raises StartupError where it does not fit the target."""
    if speculation is None or speculation.method != "draft":
        return None
    command = worker_pb2.Initialize()
    command.CopyFrom(initialize)
    command.model_path = initialize.draft_model_path
    command.kv_cache_dtype = ""
    path = Path(command.model_path)
    config = choose_implementation(command, "cpu")
    check_draft_model(target, Path(initialize.model_path), config, path, max_model_len)
    return command, config


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model. A worker.cpu.drafters.loaded.LoadedDrafter."""

    command: worker_pb2.Initialize
    target_path: str
    model: LanguageModel
    dtype: torch.dtype
    kernels: BlockKernels | None  # what reads and writes its cache; None: torch

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.model.kv_cache_specs(), self.command.block_size, self.dtype)

    @property
    def host_block_bytes(self) -> int:
        """What was swapped out is computed again."""
        return 0

    @contextmanager
    def names_both(self) -> Iterator[None]:
        try:
            yield
        except StartupError as error:
            what = what_fails(Path(self.target_path), Path(self.command.model_path))
            why = f"{error.why}; {self.block_bytes >> 10} KiB of each block are the draft model's"
            raise StartupError(what, why, error.todo) from error

    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        size, num_blocks = self.command.block_size, rows.cache_blocks
        layout = CacheLayout(size, num_blocks, self.dtype, CPU, each_alone=self.kernels is None)
        with self.names_both():
            cache = KVCache(self.model.kv_cache_specs(), layout)
        kernels = sampling_kernels(torch.get_num_threads())
        sampler = Sampler(rows.max_num_rows, rows.vocab_size, CPU, kernels)
        backend = CpuBackend(self.model, cache, SwapSpace(0, cache), rows, sampler, self.kernels)
        logger.info(
            "drafts by %s in %s: %.0f MiB of weights, %.0f MiB of cache",
            Path(self.command.model_path).name,
            dtype_name(self.dtype),
            model_bytes(self.model) / 2**20,
            cache.num_bytes / 2**20,
        )
        budget = self.command.max_num_batched_tokens
        drafter = ModelDrafter(backend, sampler.columns.positions, DraftSlots(rows), rows, budget)
        return Drafting(drafter, None, backend.tensors)
