"""A head on a CPU: its weights, its cache with the blocks of the target's, and what drafts with it."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.api import Arena, BlockKernels, CacheLayout, StepBatch
from kernels.cpu.sampling.api import sampling_kernels
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.speculation import Speculation
from worker.config.hf_config import ModelConfig
from worker.cpu.backend import CpuBackend
from worker.cpu.drafters.loaded import Drafting
from worker.cpu.kernel_selection import use_cpu_kernels
from worker.heads.base import Head
from worker.heads.config import HeadConfig, read_head_config
from worker.heads.drafter import HeadDrafter, rows_of_head
from worker.heads.features import FeatureCache
from worker.heads.model import NAMES, TOKEN_MAP, UNUSED, EagleHead
from worker.heads.mtp import UNUSED as EVERYTHING
from worker.heads.mtp import MtpHead, mtp_weights
from worker.heads.mtp_config import MtpConfig
from worker.layers.base import Weight
from worker.layers.embedding import VocabEmbedding
from worker.memory.kv_cache import NO_MEMORY, KVCache, block_bytes
from worker.memory.swap_space import SwapSpace
from worker.models.base import LanguageModel
from worker.models.decoder import Decoder
from worker.models.gemma4 import Gemma4Model
from worker.parallel import Placement
from worker.sampling.sampler import Sampler
from worker.startup.model import Report, dtype_name, model_bytes
from worker.step.plan_reader import Step
from worker.step.rows import RowTable
from worker.weights.loader import load_weights
from worker.weights.open import open_checkpoint
from worker.weights.source import WHAT, TensorSource
from worker.weights.weight_table import weight_table

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeadPlan:
    """A head that fits the target, before anything is loaded."""

    initialize: worker_pb2.Initialize
    config: HeadConfig | MtpConfig
    longest: int  # tokens of a draft

    @property
    def path(self) -> Path:
        """Where its checkpoint is."""
        return Path(self.initialize.draft_model_path)

    @property
    def what_fails(self) -> str:
        """The first line of an error about the target and its head."""
        return what_fails(self.initialize)

    def capture(self, target: LanguageModel) -> None:
        """Has the target keep the hidden states that the head reads. Call it before kernels are chosen.
        Raises StartupError."""
        if not isinstance(target, Decoder | Gemma4Model):
            raise StartupError(
                self.what_fails, "the code of transformers computes the target", "use --speculate lookup"
            )
        target.capture(self.config.after)

    def load(self, target: VocabEmbedding, dtype: torch.dtype, report: Report, pinned: bool) -> "LoadedHead":
        """Loads the weights and chooses kernels. target: its embedding. dtype: of the target. Raises
        StartupError."""
        arena, initialize = Arena(None), self.initialize
        place = Placement(dtype, CPU, arena=arena)
        with names_both(self.what_fails), open_checkpoint(self.path) as checkpoint:
            head, table, unused = _build(self.config, place, target, checkpoint)
            load_weights(checkpoint, table, unused, lambda done: report("weights of the head", done))
        kernels = use_cpu_kernels(
            *(head, dtype, CPU, initialize.block_size, head.attention_heads(), arena, report, pinned),
            *(initialize.quantization, initialize.plain_head),
        )
        return LoadedHead(self, head, dtype, kernels.blocks)


def read_head(
    initialize: worker_pb2.Initialize, speculation: Speculation | None, target: ModelConfig
) -> HeadPlan | None:
    """Returns the head that --speculate names; None: there is none. Raises StartupError where it does not fit
    the target."""
    if speculation is None or speculation.method != "heads":
        return None
    path, what = Path(initialize.draft_model_path), what_fails(initialize)
    with names_both(what):
        config = read_head_config(path, target)
    return HeadPlan(initialize, config, speculation.tokens)


def what_fails(initialize: worker_pb2.Initialize) -> str:
    """Returns the first line of an error about a target and its head."""
    target, head = Path(initialize.model_path), Path(initialize.draft_model_path)
    return f"cannot draft for {target.name} with the head {head.name}"


@contextmanager
def names_both(what: str, beside: str = "") -> Iterator[None]:
    """A StartupError within it begins with `what`, and says `beside` too."""
    try:
        yield
    except StartupError as error:
        raise StartupError(what, error.why + beside, error.todo) from error


def _build(
    config: HeadConfig | MtpConfig, place: Placement, target: VocabEmbedding, checkpoint: TensorSource
) -> tuple[Head, list[Weight], str]:
    """Returns a head without its weights, where these come from, and the pattern of other tensors. Raises
    StartupError."""
    if isinstance(config, MtpConfig):
        layer = MtpHead(config, place, target)
        return layer, mtp_weights(layer, config, checkpoint), EVERYTHING
    head = EagleHead(config, place, target, "embed_tokens.weight" in checkpoint)
    if config.has_token_map:
        head.token_map = _read_token_map(checkpoint, config)
    return head, weight_table(head, NAMES), UNUSED


def _read_token_map(checkpoint: TensorSource, config: HeadConfig) -> torch.Tensor:
    """Returns the numbers in the vocabulary of the tokens that a head has logits for. Raises StartupError."""
    size, vocab_size = config.draft_vocab_size, config.layer.vocab_size
    if TOKEN_MAP not in checkpoint:
        raise StartupError(
            WHAT, f"the head lacks tensor {TOKEN_MAP}, and it has {size} of {vocab_size} tokens"
        )
    offsets = checkpoint.read(TOKEN_MAP, ())
    if tuple(offsets.shape) != (size,) or offsets.is_floating_point():
        raise StartupError(WHAT, f"tensor {TOKEN_MAP} of the head must have {size} integers")
    tokens = offsets.long() + torch.arange(size)
    if not bool(((tokens >= 0) & (tokens < vocab_size)).all()) or len(set(tokens.tolist())) < size:
        raise StartupError(WHAT, f"tensor {TOKEN_MAP} of the head names a token twice, or one out of range")
    return tokens


@dataclass(frozen=True)
class LoadedHead:
    """A head with its weights. A worker.cpu.drafters.loaded.LoadedDrafter."""

    plan: HeadPlan
    head: Head
    dtype: torch.dtype
    kernels: BlockKernels | None  # what reads and writes its cache; None: torch

    @property
    def block_bytes(self) -> int:
        """Keys and values, and features."""
        size = self.plan.initialize.block_size
        return block_bytes(self.head.kv_cache_specs(), size, self.dtype) + self.host_block_bytes

    @property
    def host_block_bytes(self) -> int:
        """Features are swapped, keys and values are computed again."""
        width = self.plan.config.layer.hidden_size
        return self.plan.initialize.block_size * width * self.dtype.itemsize

    def names_both(self) -> AbstractContextManager[None]:
        beside = f"; {self.block_bytes >> 10} KiB of each block are the head's"
        return names_both(self.plan.what_fails, beside)

    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        initialize, num_blocks = self.plan.initialize, rows.cache_blocks
        layout = CacheLayout(initialize.block_size, num_blocks, self.dtype, CPU, self.kernels is None)
        own_rows = rows_of_head(rows)
        with self.names_both():
            cache = KVCache(self.head.kv_cache_specs(), layout)
            features = self._features(rows, num_host_blocks)
        sampler = Sampler(rows.max_num_rows, rows.vocab_size, CPU, sampling_kernels(torch.get_num_threads()))
        backend = HeadBackend(self.head, cache, own_rows, sampler, self.kernels, features)
        logger.info(
            "drafts by the head %s in %s: %.0f MiB of weights, %.0f MiB of cache",
            *(self.plan.path.name, dtype_name(self.dtype), model_bytes(self.head) / 2**20),
            (cache.num_bytes + features.num_bytes) / 2**20,
        )

        def observe(step: Step, batch: StepBatch) -> None:
            features.store(step, batch.row_starts, self.head.fuse(target.captured))

        budget, positions = initialize.max_num_batched_tokens, sampler.columns.positions
        longest = self.plan.longest
        drafter = HeadDrafter(backend, positions, features, (rows, own_rows), budget, longest)
        return Drafting(drafter, observe, [*backend.tensors, *features.tensors])

    def _features(self, rows: RowTable, num_host_blocks: int) -> FeatureCache:
        try:
            return FeatureCache(rows, self.plan.config.layer.hidden_size, self.dtype, num_host_blocks)
        except NO_MEMORY as error:
            raise StartupError(WHAT, f"features of {rows.cache_blocks} blocks do not fit: {error}") from error


class HeadBackend(CpuBackend):
    """Computes a head on features of the target's steps."""

    def __init__(
        self,
        head: Head,
        cache: KVCache,
        rows: RowTable,
        sampler: Sampler,
        kernels: BlockKernels | None,
        features: FeatureCache,
    ) -> None:
        """rows: worker.heads.drafter.rows_of_head()."""
        super().__init__(head, cache, SwapSpace(0, cache), rows, sampler, kernels)
        self.head, self.cached_features = head, features

    def compute(self, step: Step, batch: StepBatch) -> torch.Tensor:
        self.head.features = self.cached_features.gather(step, batch.row_starts)
        hidden = super().compute(step, batch)
        self.cached_features.hand_on(step, batch.row_starts, self.head.states)
        return hidden
