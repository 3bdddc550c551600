"""Checks of Initialize that are the same for all devices, before anything is loaded."""

from pathlib import Path

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from worker.config.hf_config import ModelConfig, read_config, read_quantization


def refuse_quantization(quantization: str, device: str) -> None:
    """Raises StartupError when quantization is requested on a device other than a CPU."""
    if quantization:
        raise StartupError(
            f"cannot quantize the weights to {quantization}",
            f"only a CPU computes with quantized weights, and the device is {device}",
            "leave --quantization out, or use --device cpu",
        )


def refuse_second_quantization(quantization: str, path: Path) -> None:
    """Raises StartupError when a checkpoint whose config.json says that it is quantized would be rounded to 4
    bits again. path: of the checkpoint."""
    settings = None if is_gguf(path) else read_quantization(read_config(path))
    if settings is not None:
        raise StartupError(
            f"cannot quantize the weights to {quantization}",
            f"they are quantized already: quant_method is {settings.text('quant_method')}",
            "leave --quantization out: a CPU keeps the 4 bits of GPTQ, AWQ and compressed-tensors",
        )


def check_group(rank: int, size: int) -> None:
    """Raises StartupError for a tensor-parallel group of more than one worker."""
    if size > 1:
        raise StartupError(
            "cannot split the model",
            f"tensor_parallel_size = {size} is not built yet",
            "leave --tensor-parallel-size out",
        )
    if rank != 0:
        raise StartupError("cannot join the group", f"rank {rank} in a group of one worker", "use --rank 0")


def choose_max_model_len(requested: int, config: ModelConfig) -> int:
    """Returns the context length: the model's, or less if requested. Raises StartupError."""
    if requested > config.max_position:
        raise StartupError(
            "cannot use this context length",
            f"max_model_len = {requested}, but the model goes to {config.max_position}",
            "leave --max-model-len out, or ask for less",
        )
    return requested or config.max_position
