"""Checks of Initialize that are the same for all devices, before anything is loaded."""

import logging
from pathlib import Path

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import ModelConfig, read_config, read_quantization
from worker.config.split import divided_sizes, stage_layers
from worker.group_shape import group_shape

logger = logging.getLogger(__name__)

_CANNOT_SPLIT = "cannot split the model"
QUANTIZATIONS = {"cpu": ("int8", "int4"), "cuda": ("int8", "int4-g32")}
"""Values of --quantization, by device."""


def check_quantization(quantization: str, device: str) -> None:
    """Raises StartupError when a device does not round weights to what is requested."""
    if not quantization or quantization in QUANTIZATIONS.get(device, ()):
        return
    what = f"cannot quantize the weights to {quantization}"
    if device not in QUANTIZATIONS:
        raise StartupError(
            what,
            f"only CPUs and CUDA devices compute with quantized weights, and the device is {device}",
            "leave --quantization out, or use --device cpu or cuda",
        )
    raise StartupError(
        what,
        "int4, of CPUs, has two levels of scales, and int4-g32, of CUDA devices, a scale for each 32 inputs;"
        f" the device is {device}",
        f"use --quantization {' or '.join(reversed(QUANTIZATIONS[device]))}",
    )


def refuse_fast_matmul(fast_matmul: bool, device: str) -> None:
    """Raises StartupError when a GPU's matrix library is requested on a device other than a GPU."""
    if fast_matmul:
        raise StartupError(
            "cannot multiply by a GPU's matrix library",
            f"the device is {device}",
            "leave --fast-matmul out, or use --device cuda",
        )


def check_cache_dtype(kv_cache_dtype: str, config: ModelConfig) -> None:
    """Raises StartupError where a dtype of keys and values is requested of a model that keeps something
    else."""
    if not kv_cache_dtype:
        return
    keeps = None
    if isinstance(config, DecoderConfig) and config.latent is not None:
        keeps = "latents in place of keys and values"
    elif config.has_states:
        keeps = "states in place of the keys and values of some layers"
    if keeps is not None:
        raise StartupError(
            f"cannot keep the KV cache in {kv_cache_dtype}",
            f"{config.architecture} keeps {keeps}, which no kernel reads from 8 bits",
            "leave --kv-cache-dtype out",
        )


def refuse_second_quantization(quantization: str, path: Path) -> None:
    """Raises StartupError when a checkpoint whose config.json says that it is quantized would be rounded to 4
    bits again. path: of the checkpoint."""
    settings = None if is_gguf(path) else read_quantization(read_config(path))
    if settings is not None:
        raise StartupError(
            f"cannot quantize the weights to {quantization}",
            f"they are quantized already: quant_method is {settings.text('quant_method')}",
            "leave --quantization out: the 4 bits of GPTQ, AWQ and compressed-tensors are kept",
        )


def check_split(config: ModelConfig, size: int, quantization: str) -> None:
    """Raises StartupError where a model cannot be computed by so many ranks with the bits of one, whatever
    becomes of its weights (worker.cpu.kernel_selection). quantization: of a CUDA device, as in Initialize."""
    if size == 1:
        return
    if not isinstance(config, DecoderConfig):
        why = f"{config.implementation} computes {config.architecture} in one worker"
        raise StartupError(_CANNOT_SPLIT, why)
    if quantization:
        raise StartupError(
            _CANNOT_SPLIT,
            f"--quantization {quantization} chooses scales from all inputs of a matrix, and a rank has some",
            "leave --quantization out",
        )
    flag = f"--tensor-parallel-size {size}"
    if size & (size - 1):
        raise StartupError(_CANNOT_SPLIT, f"{flag}: {size} ranks are not a power of two", "use 2, 4 or 8")
    for count, what, is_shared in divided_sizes(config):
        if count % size and not (is_shared and size % count == 0):
            raise StartupError(
                _CANNOT_SPLIT,
                f"{flag}: {config.architecture} with {count} {what} cannot be divided among {size} ranks",
                "use a --tensor-parallel-size that divides them",
            )
    counts = [each.routing.num_experts for each in config.experts if each is not None]
    for count, what in ((min(counts, default=size), "experts"), (config.vocab_size // size, "tokens")):
        if count < size:
            why = f"{flag}: {config.architecture} has fewer {what} than there are ranks"
            raise StartupError(_CANNOT_SPLIT, why)


def check_shape(config: ModelConfig, tensor: int, stages: int) -> None:
    """Raises StartupError where so many stages of so many ranks do not compute a model, as far as its
    configuration says, which is before any process starts."""
    check_split(config, tensor, "")
    check_stages(config, stages)


def check_stages(config: ModelConfig, stages: int) -> None:
    """Raises StartupError where a stage would have none of the layers of which each needs one, and for models
    that encode images."""
    if stages > 1 and config.vision is not None:
        why = f"--pipeline-parallel-size {stages}, and {config.architecture} encodes images or sounds"
        raise StartupError(_CANNOT_SPLIT, why, "use --tensor-parallel-size")
    most = len(stage_layers(config)) if isinstance(config, DecoderConfig) else config.num_layers
    if stages > most:
        which = f", which make at most {most} stages" if most < config.num_layers else ""
        why = f"--pipeline-parallel-size {stages}, and the model has {config.num_layers} layers{which}"
        raise StartupError(_CANNOT_SPLIT, why, "use fewer stages")


def check_group(rank: int, initialize: worker_pb2.Initialize, device: str) -> None:
    """Raises StartupError for a rank that the group does not have, and where several ranks are asked for what
    one worker alone does. device: "cpu", "cuda" or "simulated"."""
    tensor, stages = group_shape(initialize)
    size = tensor * stages
    if rank >= size:
        group = "one worker" if size == 1 else f"{size} workers"
        ranks = "0" if size == 1 else f"0 to {size - 1}"
        raise StartupError(
            "cannot join the group", f"rank {rank} in a group of {group}", f"use --rank {ranks}"
        )
    if size == 1:
        return
    flag = f"--pipeline-parallel-size {stages}" if stages > 1 else f"--tensor-parallel-size {tensor}"
    for is_wanted, why, todo in (
        (
            device == "cuda" and initialize.num_hosts > 1,
            f"{flag} over several hosts is built for CPUs, and the device is {device}",
            "use --device cpu",
        ),
        (
            initialize.HasField("speculation") and device == "simulated",
            f"{flag} with --speculate {initialize.speculation.flag}: simulated ranks do not draft",
            "leave --speculate out",
        ),
        (
            initialize.load_format == "dummy",
            f"{flag} with --load-format dummy: random weights are drawn by one worker",
            "use a checkpoint",
        ),
        (
            bool(initialize.max_loras) and device == "simulated",
            f"{flag} with --lora, --lora-folder or --lora-hub: simulated ranks do not load adapters",
            "leave them out",
        ),
    ):
        if is_wanted:
            raise StartupError(_CANNOT_SPLIT, why, todo)


def choose_max_model_len(initialize: worker_pb2.Initialize, config: ModelConfig) -> int:
    """Returns the context length: the model's, or less if requested, or if a step cannot compute so long a
    prompt that must be computed in one. Raises StartupError."""
    requested, budget = initialize.max_model_len, initialize.max_num_batched_tokens
    if requested > config.max_position:
        raise StartupError(
            "cannot use this context length",
            f"max_model_len = {requested}, but the model goes to {config.max_position}",
            "leave --max-model-len out, or ask for less",
        )
    wanted = requested or config.max_position
    if not config.bidirectional or wanted <= budget:
        return wanted
    why = f"{config.architecture} computes a prompt in one step, and --max-num-batched-tokens is {budget}"
    if requested:
        raise StartupError(
            "cannot use this context length",
            f"max_model_len = {requested}, but {why}",
            f"use --max-num-batched-tokens {requested}, or ask for less",
        )
    logger.warning("the context is %d tokens, not %d: %s", budget, wanted, why)
    return budget
