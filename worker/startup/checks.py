"""Checks of Initialize that are the same for all devices, before anything is loaded."""

from pagewire.errors import StartupError
from worker.config.hf_config import ModelConfig

NO_SWAP_SPACE = "cannot allocate the swap space"
_U32 = (1 << 32) - 1


def refuse_quantization(quantization: str, device: str) -> None:
    """Raises StartupError when quantization is requested on a device other than a CPU."""
    if quantization:
        raise StartupError(
            f"cannot quantize the weights to {quantization}",
            f"only a CPU computes with quantized weights, and the device is {device}",
            "leave --quantization out, or use --device cpu",
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


def choose_num_host_blocks(swap_space_bytes: int, bytes_per_block: int, available: float) -> int:
    """Returns the number of blocks in the swap space. Raises StartupError when it does not fit into memory,
    or has no room for one block.

    available: bytes of unclaimed memory; infinite where the swap space is simulated.
    """
    if 0 < swap_space_bytes < bytes_per_block:
        raise StartupError(
            NO_SWAP_SPACE,
            f"--swap-space is {swap_space_bytes} bytes, but a KV block has {bytes_per_block}",
            "choose a larger --swap-space, or leave it out",
        )
    if swap_space_bytes > max(0, available):
        raise StartupError(
            NO_SWAP_SPACE,
            f"--swap-space is {swap_space_bytes >> 20} MiB, but beside weights and KV cache"
            f" {max(0, int(available)) >> 20} MiB of memory are available",
            "choose a smaller --swap-space, or leave it out",
        )
    return min(swap_space_bytes // bytes_per_block, _U32)
