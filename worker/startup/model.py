"""The device of a model, and the model with its weights, on any device."""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import torch

from kernels.api import Arena, e4m3
from kernels.triton import requirements
from pagewire.checkpoints.heads import CLASSIFIER_TENSOR
from pagewire.host.resources import available_memory
from pagewire.internal.v1 import worker_pb2
from worker.adapters.targets import find_targets
from worker.config.hf_config import ModelConfig
from worker.config.names import spelled
from worker.imports import import_metas
from worker.layers.base import Layer
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.matrix import LinearMethod, Matrix, PlainMethod
from worker.memory.kv_cache import fitting
from worker.models.base import Family, LanguageModel
from worker.models.registry import family_of
from worker.models.staged import StagedModel
from worker.parallel import ALONE, Capacity, Groups, Placement
from worker.startup.checks import check_split
from worker.startup.implementation import ForeignConfig
from worker.weights.held_bits import HeldBits
from worker.weights.loader import (
    check_tied_head,
    fill_dummy,
    layers_and_names,
    load_weights,
    stored_names,
    weight_table,
)
from worker.weights.open import open_checkpoint
from worker.weights.sizes import capacity_of
from worker.weights.source import WHAT, TensorSource

logger = logging.getLogger(__name__)

_REMEDY = "is config.json that of these weights?"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Report = Callable[[str, float], None]
"""Called with the name of a phase and the fraction of it that is done."""


def choose_device(name: str) -> torch.device:
    """Returns the device of --device. auto: the GPU that torch finds, unless our kernels cannot run on it."""
    if name == "cuda":
        return torch.device("cuda")
    if name == "auto" and torch.cuda.is_available():
        reason = requirements.why_not(torch.device("cuda"), torch.bfloat16, head_dim=128)
        if reason is None:
            return torch.device("cuda")
        logger.warning("computing on the CPU: %s", reason)
    return torch.device("cpu")


def load_model(
    config: ModelConfig,
    initialize: worker_pb2.Initialize,
    device: torch.device,
    report: Report,
    choose: Callable[[torch.dtype], torch.dtype],
    bits: HeldBits,
    arena: Arena | None = None,
    groups: Groups = ALONE,
) -> tuple[LanguageModel, torch.dtype]:
    """Loads the weights. Returns the model and the dtype that it computes in.

    choose: maps the requested dtype to the one that the device computes in, before anything is allocated;
    may raise StartupError. bits: chooses how matrices are held. arena: memory for the weights, on a CPU.
    groups: the rank whose part of the weights is loaded.
    """

    def progress(fraction: float) -> None:
        report("weights", fraction)

    progress(0.0)
    check_split(config, groups.tensor.size, initialize.quantization if device.type != "cpu" else "")
    if isinstance(config, ForeignConfig):
        return config.load(
            initialize, lambda stored: choose(_choose_dtype(initialize.dtype, stored)), progress
        )
    family = family_of(config)
    is_dummy = initialize.load_format == "dummy"
    with nullcontext() if is_dummy else open_checkpoint(Path(initialize.model_path)) as checkpoint:
        capacity = _memory_of(device) if checkpoint is None else capacity_of(config, checkpoint)
        wanted = _choose_dtype(initialize.dtype, _stored_dtype(config, checkpoint))
        held = bits.choose_dtype(checkpoint, wanted)
        place = Placement(
            held or choose(wanted),
            device,
            groups.tensor,
            groups.stage,
            arena=arena,
            later=held is not None,
            measures_rows=initialize.quantization == "int8",
            capacity=capacity,
        )
        with fitting(WHAT, "a model as large as config.json says cannot be made", _REMEDY):
            model = family.build(config, place)
        source = None if is_dummy else Path(initialize.model_path)
        model.target_modules = find_targets(model, family.names, family.optional_prefix, source)
        if checkpoint is None:
            table = bits.hold(model, weight_table(model, family.names), {}, place)
            import_metas()  # torch makes no generator without them
            fill_dummy(table, initialize.seed, progress, device, bits.write)
            return model, place.dtype
        names = _fitting_names(model, family, checkpoint)
        _read_as_stored(model, names, checkpoint)
        table = weight_table(model, names)
        others = [
            each for layer, stored in layers_and_names(model, names) for each in layer.elsewhere(*stored)
        ]
        if groups.stage.count > 1:
            assert isinstance(model, StagedModel)
            model.keep(groups, config.hidden_size, place.dtype)
            layers = {layer for layer in model.modules() if isinstance(layer, Layer)}
            model.target_modules = model.target_modules.of(layers)
            others += [weight.name for weight in table]
            table = weight_table(model, names)
        if config.tied:
            check_tied_head(checkpoint, names, family.optional_prefix)
        table = bits.hold(model, table, stored_names(checkpoint, table, family.optional_prefix), place)
        bits.log(checkpoint, table, place.dtype)
        unused = family.unused + (rf"|{re.escape(CLASSIFIER_TENSOR)}" if config.classifies else "")
        load_weights(checkpoint, table, unused, progress, family.optional_prefix, bits.fill, others)
    return model, place.dtype


def _memory_of(device: torch.device) -> Capacity | None:
    """Returns what random weights may take on a CPU, in 16 bits at least. A CUDA device has its own check."""
    if device.type != "cpu":
        return None
    memory = available_memory()
    return Capacity(memory // 2, memory >> 12, f"{memory >> 20} MiB of memory have room for")


def _stored_dtype(config: ModelConfig, checkpoint: TensorSource | None) -> torch.dtype:
    """Returns the dtype that a configuration says, or else that of the weights; float32 where these are
    random."""
    if config.dtype:
        return DTYPES[config.dtype]
    return torch.float32 if checkpoint is None else checkpoint.main_dtype()


def _fitting_names(
    model: LanguageModel, family: Family, checkpoint: TensorSource
) -> Mapping[str, tuple[str, ...]]:
    """Returns the names that this checkpoint has; those of the family where it has none of those known."""
    tables: list[Mapping[str, tuple[str, ...]]] = []
    if family.other_names:
        tables.append({**family.names, **family.other_names})
    if family.spellings:
        tables.append(family.names)
    for spelling, names in product(({}, *family.spellings), tables):
        found = spelled(names, spelling)
        if all(weight.name in checkpoint for weight in weight_table(model, found)):
            return found
    return family.names


def _read_as_stored(
    model: LanguageModel, names: Mapping[str, tuple[str, ...]], checkpoint: TensorSource
) -> None:
    """Has all matrices of experts go by the shapes of their tensors, where each is one tensor."""
    for layer, stored in layers_and_names(model, names):
        if isinstance(layer, ExpertMatrices) and stored[0] in checkpoint:
            layer.read_as_stored(checkpoint.shape(stored[0]))


def _choose_dtype(name: str, stored: torch.dtype) -> torch.dtype:
    """name: of Initialize. stored: the checkpoint's."""
    return stored if name in ("", "auto") else DTYPES[name]


def stored_dtype(initialize: worker_pb2.Initialize, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of keys and values of a model that computes in `dtype`: --kv-cache-dtype."""
    return e4m3.E4M3 if initialize.kv_cache_dtype == "fp8_e4m3" else dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Returns "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def tokens_per_vector(model: LanguageModel) -> int:
    """Returns about how many tokens of a prompt a model computes in the time in which its encoder makes a
    vector, at least 1; 0: it has no encoder. By the bytes of what both multiply by: a vector is made of
    several states, such as the patches of a square."""
    if model.vision is None:
        return 0
    tables = {each.method for each in model.modules() if isinstance(each, Matrix) and each.is_table}

    def nbytes(module: torch.nn.Module) -> int:
        methods = (each for each in module.modules() if isinstance(each, LinearMethod))
        return sum(each.weight.nbytes for each in methods if each not in tables)

    tower, decoder = nbytes(model.vision.tower), nbytes(model) - nbytes(model.vision)
    states = model.vision.config.states_per_vector
    return max(1, round(states * tower / max(1, decoder)))


def model_bytes(model: LanguageModel) -> int:
    """Returns the bytes of the weights in the form in which they are computed with."""
    methods = [each for each in model.modules() if isinstance(each, LinearMethod)]
    held = sum(each.weight.nbytes for each in methods if not isinstance(each, PlainMethod))
    return held + sum(parameter.nbytes for parameter in model.parameters())
