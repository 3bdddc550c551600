"""Chooses between the CPU kernels of kernels.cpu and torch, once, while the model is loaded."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.api import Arena, BlockKernels, CpuOps, WeightForms
from kernels.cpu import instruction_sets
from kernels.cpu.requirements import why_not
from pagewire.errors import StartupError
from worker.layers.base import Layer
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.linear import RowLinear
from worker.layers.matrix import Matrix
from worker.models.base import LanguageModel

logger = logging.getLogger(__name__)

Report = Callable[[str, float], None]


@dataclass(frozen=True)
class CPUKernels:
    """What was chosen."""

    packed: bool = False  # matrices multiply in our kernels
    blocks: BlockKernels | None = None  # attention too
    ops: CpuOps | None = None


def compute_dtype(wanted: torch.dtype) -> torch.dtype:
    """The dtype that a CPU computes in when the checkpoint or the user asks for `wanted`.

    float16 is computed in float32; with our kernels, matrices keep their 16 bits (kernels.cpu.matmul.packed).
    Without them weights of 16 bits are widened: torch multiplies 16-bit matrices at one to two GFLOP/s on
    CPUs that lack the instructions, and rounds after every operation.
    """
    if wanted == torch.float32:
        return wanted
    reason, name = why_not(), str(wanted).removeprefix("torch.")
    if reason is None and wanted == torch.bfloat16:
        return wanted
    if reason is None:
        logger.info("%s is computed in float32: its matrices keep 16 bits, the KV cache has 32", name)
    else:
        logger.warning("weights in %s are widened to float32, which doubles their memory: %s", name, reason)
    return torch.float32


def quantizable_dtype(wanted: torch.dtype) -> torch.dtype:
    """The dtype of activations, and of weights before they become integers: bfloat16 for float16."""
    return torch.bfloat16 if wanted == torch.float16 else wanted


def use_cpu_kernels(
    model: LanguageModel,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    heads: tuple[int, int] | None,
    arena: Arena | None,
    report: Report,
    pinned: bool = False,
    quantization: str = "",
    plain_head: bool = False,
    *,
    e4m3_cache: bool = False,
) -> CPUKernels:
    """Compiles the kernels, or takes them from disk, and packs the weights of the model for them.

    They get as many threads as torch has. heads: LanguageModel.attention_heads(). Where they cannot
    be used, nothing is changed. What is chosen is logged in one line. arena: where the weights are, to be
    packed there; None: elsewhere. pinned: no other process runs on our cores. quantization, plain_head: as
    in Initialize; see kernels.cpu.weight_forms. e4m3_cache: whether keys and values are e4m3. Raises
    StartupError where that is impossible.
    """
    arena = arena or Arena()
    forms = WeightForms.of(quantization, plain_head, arena)
    if quantization:
        _check_quantized(model, dtype, quantization, forms)
    if device.type != "cpu":
        return CPUKernels()
    reason = why_not()
    if reason is not None:
        logger.info("torch computes, without our CPU kernels: %s", reason)
        return CPUKernels()
    report("kernels", 0.0)
    check_leaves(model, forms)
    ops = CpuOps(dtype)
    ops.team.set_threads(torch.get_num_threads())
    ops.team.recovers_stragglers = not pinned  # threads keep their cores
    largest = max(model.kv_cache_specs(), key=lambda spec: spec.head_dim)
    blocks = largest.block_kernels(dtype, block_size, heads[1], e4m3_cache) if heads else None
    model.compute_by(ops)
    layers = packed_layers(model)
    for done, layer in enumerate(layers):
        layer.pack(forms)
        report("kernels", (done + 1) / len(layers))
    arena.close_hole()
    head_dim = heads[0] if heads else "by layer"
    attention = "" if blocks else f"; attention by torch: block size {block_size}, head size {head_dim}"
    weights = f"; weights in {quantization}" if quantization else ""
    weights += ", but for the head" if quantization and plain_head else ""
    chosen = instruction_sets.target_set()
    logger.info("our CPU kernels compute (%s)%s%s", chosen.title if chosen else "", weights, attention)
    return CPUKernels(True, blocks, ops)


def _check_quantized(model: LanguageModel, dtype: torch.dtype, quantization: str, forms: WeightForms) -> None:
    """Raises StartupError unless these weights can be integers here."""
    name = str(dtype).removeprefix("torch.")
    reason = (
        why_not() if dtype == torch.bfloat16 else f"it is made from weights in bfloat16, and these are {name}"
    )
    if reason is not None:
        todo = "leave --quantization out, or add --dtype bfloat16 on a CPU with AVX2"
        raise StartupError(f"cannot quantize the weights to {quantization}", reason, todo)
    for name, layer in model.named_modules():
        if isinstance(layer, ExpertMatrices):
            inputs = layer.in_features
        elif isinstance(layer, Matrix) and not layer.is_table:
            inputs = layer.weight.shape[1]
        else:
            continue
        if inputs < forms.group_size:
            raise StartupError(
                f"cannot quantize the weights to {quantization}",
                f"{name} has {inputs} inputs, and a group has {forms.group_size}",
                "use --quantization int8",
            )


def check_leaves(model: LanguageModel, forms: WeightForms, ranks: int = 1) -> None:
    """Raises StartupError where a sum has too few leaves for so many ranks, or for those of the layer's group
    (kernels.ops.layers.leaves)."""
    for name, layer in model.named_modules():
        if not isinstance(layer, RowLinear) or layer.is_undivided:
            continue
        leaves, size = layer.most_ranks(forms), max(ranks, layer.group.size)
        if leaves >= size:
            continue
        raise StartupError(
            "cannot split the model",
            f"a product of {name}, with {layer.in_features} inputs, is a sum of {leaves} "
            f"{'leaf' if leaves == 1 else 'leaves'}, which cannot be divided among {size} ranks",
            "leave --tensor-parallel-size out" if leaves == 1 else f"use --tensor-parallel-size {leaves}",
        )


def packed_layers(model: LanguageModel) -> list[Layer]:
    """All but an embedding that only looks up. Those that hold others come first."""
    left_out = model.looked_up
    return [layer for layer in model.modules() if isinstance(layer, Layer) and layer is not left_out]
