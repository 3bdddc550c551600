"""A model with its weights on a CPU: as the checkpoint has them, also in 4 bits, or to become integers as
--quantization says. Then the kernels that compute it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.api import Arena, BlockKernels, Code, GroupedWords
from kernels.cpu import instruction_sets
from kernels.cpu.requirements import why_not
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.fused_decoder.decoder import fuse
from worker.cpu.kernel_selection import compute_dtype, quantizable_dtype, use_cpu_kernels
from worker.exactness import Exactness, on_cpu
from worker.layers.matrix import GroupedMethod, WeightSlot
from worker.models.base import LanguageModel
from worker.parallel import ALONE, Groups
from worker.startup.checks import check_quantization, refuse_second_quantization
from worker.startup.implementation import ForeignConfig
from worker.startup.model import Report, load_model, stored_dtype
from worker.weights.held_bits import HeldBits
from worker.weights.prefault import WeightsMemory
from worker.weights.source import TensorSource
from worker.weights.stored_forms import BITS, HeldForm, group_form, no_kernel

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")


class OwnBits(HeldBits):
    """Keeps the integers of a checkpoint, or its floats of 4 bits. Activations are bfloat16 where any matrix
    is held so."""

    needed_dtype = "kernels for 4 bits take activations in bfloat16"

    def __init__(self, refusal: str = "", arena: Arena | None = None) -> None:
        """refusal: as in HeldBits. arena: of the model."""
        super().__init__(refusal)
        self._arena = arena

    def _why_none(
        self, checkpoint: TensorSource, forms: Mapping[str, HeldForm | str], dtype: torch.dtype
    ) -> str:
        in_groups = {name: forms[name] for name in forms if checkpoint.grouped(name) is not None}
        if not in_groups:
            return "no kernel computes with them as they are"
        return super()._why_none(checkpoint, in_groups, dtype)

    def _stored_form(self, checkpoint: TensorSource, name: str) -> HeldForm | str:
        stored = checkpoint.grouped(name)
        return no_kernel(checkpoint, name) if stored is None else group_form(stored)

    def _activations(self, wanted: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def _check_memory(self, model: torch.nn.Module, held: list[tuple[WeightSlot, HeldForm]]) -> None:
        """Leaves it to the system."""

    def _allocate(self, shape: tuple[int, ...], form: HeldForm) -> GroupedMethod:
        groups, e2m1 = (form.group_size, form.groups, form.order), form.code is Code.E2M1
        rows, inputs = shape
        return GroupedMethod(GroupedWords.empty((rows, inputs), *groups, self._arena, e2m1))

    def _label(self, form: HeldForm, kind: str) -> str:
        return kind if form.code is Code.E2M1 else f"{kind}-int{form.bits}"

    def _log(self, dtype: str, refusal: str, memory: str) -> None:
        packing = self._packing
        if not self._rows:
            logger.warning("weights in %s are unpacked to %s: %s; %s", packing, dtype, memory, refusal)
        elif self._unpacked:
            text = "weights in %s keep their integers, but some are unpacked to %s: %s; %s"
            logger.warning(text, packing, dtype, memory, refusal)
        else:
            logger.info("weights in %s keep their integers, in %d bits: %s", packing, BITS, memory)


@dataclass(frozen=True)
class CpuWeights:
    """A model whose weights are loaded, and not packed yet."""

    model: LanguageModel
    dtype: torch.dtype  # of activations, and of parameters
    arena: Arena | None  # where the weights are; None: they become integers elsewhere
    quantization: str  # of the weights, as ModelFacts says it
    groups: Groups = ALONE


def load_cpu_weights(
    initialize: worker_pb2.Initialize,
    config: ModelConfig,
    report: Report,
    memory: WeightsMemory | None,
    groups: Groups = ALONE,
) -> CpuWeights:
    """memory: for the weights; None: they get new one. groups: the rank whose part is loaded. Raises
    StartupError."""
    chosen = initialize.quantization
    if chosen:
        check_quantization(chosen, "cpu")
        if chosen == "int4":
            refuse_second_quantization(chosen, Path(initialize.model_path))
        bits = OwnBits(f"--quantization {chosen} rounds them again")
        model, dtype = load_model(config, initialize, CPU, report, quantizable_dtype, bits, None, groups)
        return CpuWeights(model, dtype, None, chosen, groups)
    arena = Arena(None if memory is None else memory.tensor())
    bits = OwnBits(why_not() or "", arena)
    model, dtype = load_model(config, initialize, CPU, report, compute_dtype, bits, arena, groups)
    if memory is not None:
        memory.release(arena.unused_address)
    return CpuWeights(model, dtype, arena, bits.quantization, groups)


@dataclass(frozen=True)
class CpuModel:
    """A model that computes."""

    model: LanguageModel
    dtype: torch.dtype
    quantization: str  # of the weights, as ModelFacts says it
    blocks: BlockKernels | None  # what reads and writes the cache; None: torch
    exactness: Exactness


def with_kernels(
    initialize: worker_pb2.Initialize, config: ModelConfig, weights: CpuWeights, report: Report, pinned: bool
) -> CpuModel:
    """Packs the weights for the compiled kernels, and has steps recorded where these can run them. Exchanges
    something with other ranks."""
    kernels = use_cpu_kernels(
        weights.model,
        weights.dtype,
        CPU,
        initialize.block_size,
        weights.model.attention_heads(),
        weights.arena,
        report,
        pinned,
        initialize.quantization,
        initialize.plain_head,
        e4m3_cache=stored_dtype(initialize, weights.dtype) != weights.dtype,
    )
    chosen = instruction_sets.target_set() if kernels.packed else None
    exactness = on_cpu(chosen.name if chosen else None, kernels.blocks is not None)
    if isinstance(config, ForeignConfig):
        exactness = config.exactness(exactness)
    exactness = exactness.with_cache(initialize.kv_cache_dtype)
    most = initialize.max_num_batched_tokens, initialize.max_num_seqs
    model = fuse(weights.model, kernels.ops, kernels.blocks, *most)
    if not weights.groups.world.least(model is not weights.model):
        model = weights.model  # all ranks exchange the same in a step
    return CpuModel(model, weights.dtype, weights.quantization, kernels.blocks, exactness)
