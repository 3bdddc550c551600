"""A head on a CPU: its weights, its cache with the blocks of the target's, and what drafts with it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernels.api import Arena, BlockKernels, StepBatch
from kernels.ops.attention.ragged import Integers
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.backend import CpuBackend
from worker.cpu.kernel_selection import use_cpu_kernels
from worker.executor.backend import Backend
from worker.layers.base import Weight
from worker.layers.embedding import VocabEmbedding
from worker.memory.kv_cache import KVCache, fitting
from worker.memory.swap_space import SwapSpace
from worker.models.base import LanguageModel
from worker.models.registry import family_of
from worker.models.staged import StagedModel
from worker.parallel import Placement
from worker.sampling.sampler import Sampler
from worker.speculation.models.draft_slots import DraftSlots
from worker.speculation.models.features import FeatureCache, Head
from worker.speculation.models.head_config import HeadConfig, MtpConfig, read_head_config
from worker.speculation.models.head_layers import (
    EAGLE_NAMES,
    EAGLE_UNUSED,
    MTP_UNUSED,
    TOKEN_MAP,
    EagleHead,
    MtpHead,
    mtp_weights,
)
from worker.speculation.models.loaded import DrafterPlan, Drafting, LoadedDrafter, names_both
from worker.speculation.models.model_drafter import CATCH_UP, ModelDrafter
from worker.startup.model import Report
from worker.step.plan_reader import Step, Swaps
from worker.step.rows import RowTable
from worker.weights.loader import load_weights, weight_table
from worker.weights.open import open_checkpoint
from worker.weights.sizes import capacity_of
from worker.weights.source import WHAT, TensorSource

CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeadPlan(DrafterPlan):
    """A head that fits the target."""

    initialize: worker_pb2.Initialize
    target: ModelConfig
    config: HeadConfig | MtpConfig
    what_fails: str

    def capture(self, target: LanguageModel) -> None:
        if not isinstance(target, StagedModel):
            raise StartupError(
                self.what_fails, "the code of transformers computes the target", "use --speculate lookup"
            )
        target.capture(self.config.after)

    def load(self, target: LanguageModel, dtype: torch.dtype, report: Report, pinned: bool) -> "LoadedHead":
        arena, initialize = Arena(None), self.initialize
        path = Path(initialize.speculation.model_path)
        with names_both(self.what_fails), open_checkpoint(path) as checkpoint:
            capacity = capacity_of(self.config.layer, checkpoint, known=("vocab_size", "num_hidden_layers"))
            place = Placement(dtype, CPU, arena=arena, capacity=capacity)
            embedding = target.embedding
            if embedding.group.size > 1:
                embedding = self._whole_embedding(dtype)
            head, table, unused = _build(self.config, place, embedding, checkpoint)
            load_weights(checkpoint, table, unused, lambda done: report("weights of the head", done))
        kernels = use_cpu_kernels(
            *(head, dtype, CPU, initialize.block_size, head.attention_heads(), arena, report, pinned),
            *(initialize.quantization, initialize.plain_head),
        )
        width = self.config.layer.hidden_size
        return LoadedHead(initialize, self.what_fails, head, dtype, kernels.blocks, width)

    def _whole_embedding(self, dtype: torch.dtype) -> VocabEmbedding:
        """Returns the embedding of a target of several ranks, for the rank that drafts: the others are in the
        middle of a step, and exchange nothing with it. Raises StartupError."""
        family, width = family_of(self.target), self.config.layer.hidden_size
        whole = VocabEmbedding(self.target.vocab_size, width, Placement(dtype, CPU))
        table = list(whole.weights(*family.names["embedding"]))
        with open_checkpoint(Path(self.initialize.model_path)) as checkpoint:
            load_weights(checkpoint, table, ".*", lambda done: None, family.optional_prefix)
        return whole


def read_head(initialize: worker_pb2.Initialize, target: ModelConfig) -> HeadPlan:
    """Returns the head that --speculate names. Raises StartupError where it does not fit the target."""
    path = Path(initialize.speculation.model_path)
    what = f"cannot draft for {Path(initialize.model_path).name} with the head {path.name}"
    with names_both(what):
        config = read_head_config(path, target)
    return HeadPlan(initialize, target, config, what)


def _build(
    config: HeadConfig | MtpConfig, place: Placement, target: VocabEmbedding, checkpoint: TensorSource
) -> tuple[Head, list[Weight], str]:
    """Returns a head without its weights, where these come from, and the pattern of other tensors. Raises
    StartupError."""
    if isinstance(config, MtpConfig):
        layer = MtpHead(config, place, target)
        return layer, mtp_weights(layer, config, checkpoint), MTP_UNUSED
    head = EagleHead(config, place, target, "embed_tokens.weight" in checkpoint)
    if config.has_token_map:
        head.token_map = _read_token_map(checkpoint, config)
    return head, weight_table(head, EAGLE_NAMES), EAGLE_UNUSED


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
class LoadedHead(LoadedDrafter):
    """A head with its weights."""

    model: Head
    width: int  # E

    title = "head"

    @property
    def host_block_bytes(self) -> int:
        """Features are swapped, keys and values are computed again."""
        return self.initialize.block_size * self.width * self.dtype.itemsize

    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        own_rows = rows_of_head(rows)
        with self.names_both():
            cache = self.make_cache(rows.cache_blocks)
            features = self._features(rows, num_host_blocks)
        sampler = self.make_sampler(rows)
        backend = HeadBackend(self.model, cache, own_rows, sampler, self.kernels, features)
        name = Path(self.initialize.speculation.model_path).name
        self.log(f"the head {name}", cache.num_bytes + features.num_bytes)

        def observe(step: Step, batch: StepBatch) -> None:
            features.store(step, batch.row_starts, self.model.fuse(target.captured))

        budget, positions = self.initialize.max_num_batched_tokens, sampler.columns.positions
        longest = self.initialize.speculation.tokens
        drafter = HeadDrafter(backend, positions, features, (rows, own_rows), budget, longest)
        return Drafting(drafter, observe, [*backend.tensors, *features.tensors])

    def _features(self, rows: RowTable, num_host_blocks: int) -> FeatureCache:
        with fitting(WHAT, f"features of {rows.cache_blocks} blocks do not fit"):
            return FeatureCache(rows, self.width, self.dtype, num_host_blocks)


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
        """rows: of rows_of_head()."""
        super().__init__(head, cache, SwapSpace(0, cache), rows, sampler, kernels)
        self.head, self.cached_features = head, features

    def compute(self, step: Step, batch: StepBatch) -> torch.Tensor:
        self.head.features = self.cached_features.gather(step, batch.row_starts)
        hidden = super().compute(step, batch)
        self.cached_features.hand_on(step, batch.row_starts, self.head.states)
        return hidden


def rows_of_head(rows: RowTable) -> RowTable:
    """Returns a table of the same rows without their first tokens; block tables and tokens are the same
    memory, lengths are not."""
    shifted = copy.copy(rows)
    shifted.token_ids = rows.token_ids[:, 1:]
    shifted.prompt_lens, shifted.num_tokens = np.zeros_like(rows.prompt_lens), np.zeros_like(rows.num_tokens)
    shifted.num_computed = np.zeros_like(rows.num_computed)
    return shifted


class HeadDrafter(ModelDrafter):
    """Runs a head on the rows of the target, and moves its features with the blocks.

    A head is a draft model with two differences. It computes a position from the features of that position
    and the token behind it, so its rows are those of the target without their first token. And what it
    computed from features of its own, behind the last token of a row, it computes again once the target has
    computed these positions: every token of a draft that was accepted, at once.
    """

    def __init__(
        self,
        backend: Backend,
        positions: "memoryview[int]",
        features: FeatureCache,
        rows: tuple[RowTable, RowTable],
        budget: int,
        longest: int,
    ) -> None:
        """rows: of the target, and rows_of_head(). longest: tokens of a draft. Others: see ModelDrafter."""
        super().__init__(backend, positions, DraftSlots(rows[1]), rows[1], budget, max(CATCH_UP, longest + 1))
        self._target_rows, self._features = rows[0], features

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        index, target, own = np.array(rows, np.int64), self._target_rows, self._rows
        for lengths, of_target in (
            (own.num_tokens, target.num_tokens),
            (own.num_computed, target.num_computed),
            (own.prompt_lens, target.prompt_lens),
        ):
            lengths[index] = of_target[index] - 1
        drafts = super().draft(rows, most)
        drafted = np.array(list(map(len, drafts)))
        some = drafted > 0
        self.slots.write(index[some], own.num_tokens[index[some]], drafted[some])
        return drafts

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        super().move_blocks(swaps, sources, targets)
        self._features.move_blocks(swaps, sources, targets)
