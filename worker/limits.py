"""What is refused before anything is loaded, whatever the device."""

from pagewire.errors import StartupError
from worker.checkpoint import ModelConfig


def check_group(rank: int, size: int) -> None:
    """Refuses a tensor-parallel group of more than one worker."""
    if size > 1:
        raise StartupError(
            "cannot split the model",
            f"tensor_parallel_size = {size} is not built yet",
            "leave --tensor-parallel-size out",
        )
    if rank != 0:
        raise StartupError("cannot join the group", f"rank {rank} in a group of one worker", "use --rank 0")


def choose_max_model_len(requested: int, config: ModelConfig) -> int:
    """The context length: the model's unless less is asked for."""
    if requested > config.max_position:
        raise StartupError(
            "cannot use this context length",
            f"max_model_len = {requested}, but the model goes to {config.max_position}",
            "leave --max-model-len out, or ask for less",
        )
    return requested or config.max_position
