"""A draft model on a CPU: those with the same vocabulary and at least the same context can draft."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagewire.checkpoints.files import read_object
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.backend import CpuBackend
from worker.cpu.weights import load_cpu_weights, with_kernels
from worker.memory.swap_space import SwapSpace
from worker.models.base import LanguageModel
from worker.speculation.models.draft_slots import DraftSlots
from worker.speculation.models.loaded import DrafterPlan, Drafting, LoadedDrafter
from worker.speculation.models.model_drafter import ModelDrafter
from worker.startup.implementation import choose_implementation
from worker.startup.model import Report
from worker.step.rows import RowTable

FILE = "tokenizer.json"
_REMEDY = "use a draft model of the same family"


def read_draft_model(
    initialize: worker_pb2.Initialize, target: ModelConfig, max_model_len: int
) -> "DraftModelPlan":
    """Returns the draft model that --speculate names. Raises StartupError where it does not fit the
    target."""
    command = worker_pb2.Initialize()
    command.CopyFrom(initialize)
    command.model_path = initialize.speculation.model_path
    for field in ("kv_cache_dtype", "config_overrides", "tokenizer_path"):
        command.ClearField(field)
    paths = Path(initialize.model_path), Path(command.model_path)
    config = choose_implementation(command, "cpu")
    check_draft_model(target, paths[0], config, paths[1], max_model_len)
    return DraftModelPlan(command, config, _what_fails(*paths))


def check_draft_model(
    target: ModelConfig, target_path: Path, draft: ModelConfig, draft_path: Path, max_model_len: int
) -> None:
    """Raises StartupError, which names both models, where the second cannot draft for the first.

    max_model_len: the context that the target is served with.
    """
    what = _what_fails(target_path, draft_path)
    if target.vocab_size != draft.vocab_size:
        why = f"the draft model's vocabulary has {draft.vocab_size} tokens, the target's {target.vocab_size}"
        raise StartupError(what, why, _REMEDY)
    if draft.has_states:
        why = f"{draft.architecture} keeps a state per row, from which no draft can be taken back"
        raise StartupError(what, why, _REMEDY)
    if draft.max_position < max_model_len:
        raise StartupError(
            what,
            f"the draft model goes to {draft.max_position} tokens, and the context is {max_model_len}",
            f"add --max-model-len {draft.max_position}, or use another draft model",
        )
    vocabularies = [_vocabulary(path, what) for path in (target_path, draft_path)]
    if None not in vocabularies and vocabularies[0] != vocabularies[1]:
        raise StartupError(what, "the tokens of their vocabularies are different", _REMEDY)


def _what_fails(target_path: Path, draft_path: Path) -> str:
    return f"cannot draft for {target_path.name} with {draft_path.name}"


def _vocabulary(path: Path, what: str) -> Any:
    """Returns the tokens of a checkpoint's tokenizer; None: it has no tokenizer.json."""
    tokenizer = read_object(path, FILE, what) if path.is_dir() else None
    model = tokenizer.get("model") if tokenizer is not None else None
    return model.get("vocab") if isinstance(model, dict) else None


@dataclass(frozen=True)
class DraftModelPlan(DrafterPlan):
    """A draft model that fits the target."""

    command: worker_pb2.Initialize  # what a worker of the draft model alone would be told
    config: ModelConfig
    what_fails: str

    def capture(self, target: LanguageModel) -> None:
        """It reads tokens alone."""

    def load(self, target: LanguageModel, dtype: torch.dtype, report: Report, pinned: bool) -> "DraftModel":
        weights = load_cpu_weights(self.command, self.config, report, None)
        loaded = with_kernels(self.command, self.config, weights, report, pinned)
        return DraftModel(self.command, self.what_fails, loaded.model, loaded.dtype, loaded.blocks)


class DraftModel(LoadedDrafter):
    """A loaded draft model."""

    title = "draft model"

    def make_drafter(self, rows: RowTable, num_host_blocks: int, target: LanguageModel) -> Drafting:
        with self.names_both():
            cache = self.make_cache(rows.cache_blocks)
        sampler = self.make_sampler(rows)
        backend = CpuBackend(self.model, cache, SwapSpace(0, cache), rows, sampler, self.kernels)
        self.log(Path(self.initialize.model_path).name, cache.num_bytes)
        budget = self.initialize.max_num_batched_tokens
        drafter = ModelDrafter(backend, sampler.columns.positions, DraftSlots(rows), rows, budget)
        return Drafting(drafter, None, backend.tensors)
