"""FP8: weights of 8 bits (e4m3) with a scale per tensor, per output, or per block of 128 x 128.

    weight            [N, K] float8_e4m3fn
    weight_scale      [] or [1] or [N] or [N, 1]
    weight_scale_inv  [N / B, K / B] with weight_block_size [B, B], as in DeepSeek V3 and Qwen 3

    weight = float(weight) * scale

Checkpoints may have a scale for inputs as well (input_scale). Inputs stay in 16 bits here.
"""

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.packed_tensor import PackedTensor, matrix_shape, part_names
from worker.weights.source import WHAT, ScaledRows, ScaledValues

_KIND = "F8_E4M3"
_DTYPES = {_KIND: torch.float8_e4m3fn, "I8": torch.int8}
_SCALES = ("weight_scale", "weight_scale_inv")
_PARTS = (*_SCALES, "input_scale", "activation_scale")


def find_fp8(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    block = settings.integers("weight_block_size") if settings.has("weight_block_size") else ()
    if len(block) not in (0, 2):
        raise settings.wrong("weight_block_size", "must be two integers")
    return scaled_weights(stored, (_KIND,), block)


def scaled_weights(
    stored: Checkpoint, kinds: tuple[str, ...], block: tuple[int, ...] = ()
) -> dict[str, PackedTensor]:
    """Returns the weights of some stored kinds that have a scale. Raises StartupError where one has none."""
    found = [name for name in stored.names() if name.endswith(".weight") and stored.kind(name) in kinds]
    return {name: _module(stored, name.removesuffix(".weight"), block) for name in found}


def _module(stored: Checkpoint, module: str, block: tuple[int, ...]) -> PackedTensor:
    outputs, inputs = matrix_shape(stored, f"{module}.weight")
    name = next((f"{module}.{each}" for each in _SCALES if f"{module}.{each}" in stored), None)
    if name is None:
        raise StartupError(WHAT, f"the checkpoint lacks tensor {module}.weight_scale")
    stored.dtype(name)
    scale = stored.read(name, ()).float()
    is_blocks = bool(block) and tuple(scale.shape) == (-(-outputs // block[0]), -(-inputs // block[1]))
    if not is_blocks and tuple(scale.shape) not in ((), (1,), (outputs,), (outputs, 1)):
        raise StartupError(
            WHAT,
            f"tensor {name} in {stored.file_of(name)} has shape {list(scale.shape)}, which is no scale of "
            f"{module}.weight, {[outputs, inputs]}",
        )

    def read(first: int, end: int) -> ScaledRows:
        values = stored.read(f"{module}.weight", (slice(first, end),))
        if is_blocks:
            return ScaledRows(values, scale[torch.arange(first, end) // block[0]])
        every = scale.reshape(-1, 1)
        return ScaledRows(values, every[first:end] if scale.numel() > 1 else every.expand(end - first, 1))

    group_size = block[1] if is_blocks else inputs
    scaled = ScaledValues(_DTYPES[stored.kind(f"{module}.weight")], group_size, read)

    def unpack(first: int, end: int) -> torch.Tensor:
        values, scales = read(first, end)
        return values.float() * scales.repeat_interleave(group_size, dim=1)[:, :inputs]

    parts = f"{module}.weight", *part_names(stored, module, _PARTS)
    return PackedTensor((outputs, inputs), parts, unpack, scaled=scaled)
