"""A model with its weights on a CPU: as the checkpoint has them, in its own integers of 4 bits, or to become
integers as --quantization says. Then the kernels that compute it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.api import Arena, BlockKernels
from kernels.cpu import instruction_sets
from kernels.cpu.requirements import why_not
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import ModelConfig
from worker.cpu.fused_decoder.decoder import fuse
from worker.cpu.kernel_selection import compute_dtype, quantizable_dtype, use_cpu_kernels
from worker.exactness import Exactness, by_transformers, on_cpu
from worker.models.base import LanguageModel
from worker.startup.checks import check_quantization, refuse_second_quantization
from worker.startup.model import Report, load_model
from worker.startup.ready import stored_dtype
from worker.transformers_backend.config import TransformersConfig
from worker.weights.own_bits import OwnBits
from worker.weights.prefault import WeightsMemory

CPU = torch.device("cpu")


@dataclass(frozen=True)
class CpuWeights:
    """A model whose weights are loaded, and not packed yet."""

    model: LanguageModel
    dtype: torch.dtype  # of activations, and of parameters
    arena: Arena | None  # where the weights are; None: they become integers elsewhere
    quantization: str  # of the weights, as ModelFacts says it


def load_cpu_weights(
    initialize: worker_pb2.Initialize, config: ModelConfig, report: Report, memory: WeightsMemory | None
) -> CpuWeights:
    """memory: for the weights; None: they get new one. Raises StartupError."""
    chosen = initialize.quantization
    if chosen:
        check_quantization(chosen, "cpu")
        if chosen == "int4":
            refuse_second_quantization(chosen, Path(initialize.model_path))
        own_bits = OwnBits(f"--quantization {chosen} rounds them again")
        model, dtype = load_model(config, initialize, CPU, report, quantizable_dtype, bits=own_bits)
        return CpuWeights(model, dtype, None, chosen)
    arena = Arena(None if memory is None else memory.tensor())
    own_bits = OwnBits(why_not() or "", arena)
    model, dtype = load_model(config, initialize, CPU, report, compute_dtype, arena, own_bits)
    if memory is not None:
        memory.release(arena.unused_address)
    return CpuWeights(model, dtype, arena, own_bits.quantization)


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
    """Packs the weights for the compiled kernels, and has steps recorded where these can run them."""
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
    if isinstance(config, TransformersConfig):
        exactness = by_transformers(config.implementation, exactness)
    exactness = exactness.with_cache(initialize.kv_cache_dtype)
    model = fuse(weights.model, kernels.ops, kernels.blocks)
    return CpuModel(model, weights.dtype, weights.quantization, kernels.blocks, exactness)
