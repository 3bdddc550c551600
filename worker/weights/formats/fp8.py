"""FP8 and MXFP4: floats of 8 and of 4 bits with scales.

FP8 is e4m3, with a scale per tensor, per output, or per block of 128 x 128:

    weight            [N, K] float8_e4m3fn
    weight_scale      [] or [1] or [N] or [N, 1]
    weight_scale_inv  [N / B, K / B] with weight_block_size [B, B], as in DeepSeek V3 and Qwen 3

    weight = float(weight) * scale

Checkpoints may have a scale for inputs as well (input_scale). Inputs stay in 16 bits here.

MXFP4 has an exponent for every 32 values, as gpt-oss's experts have them:

    NAME_blocks  [N, out, in / 32, 16] uint8   two values in a byte, the first one in the lower half
    NAME_scales  [N, out, in / 32] uint8       exponents of 2, plus 127

stand for NAME [N, in, out]: value * 2 ** (scale - 127). A value is a sign, 2 bits of exponent and 1 of
fraction; an exponent of 255 is not a number.
"""

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.packed_tensor import PackedTensor, halves_of_bytes, matrix_shape, part_names
from worker.weights.source import WHAT, GroupedIntegers, GroupedRows, ScaledRows, ScaledValues

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


_BLOCK = 32
_EXPONENT_SCALES = torch.tensor([*(2.0 ** (exponent - 128) for exponent in range(255)), torch.nan])
"""By exponent, of twice the values."""


def find_mxfp4(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    names = [name.removesuffix("_blocks") for name in stored.names() if name.endswith("_blocks")]
    return {name: _mxfp4_tensor(stored, name) for name in names}


def _mxfp4_tensor(stored: Checkpoint, name: str) -> PackedTensor:
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    if scales not in stored:
        raise StartupError(WHAT, f"the checkpoint lacks tensor {scales}")
    shape = stored.shape(blocks)
    if len(shape) != 4 or shape[3] != _BLOCK // 2 or stored.shape(scales) != shape[:3]:
        raise StartupError(
            WHAT,
            f"tensors {blocks} and {scales} in {stored.file_of(blocks)} have shapes {list(shape)} and "
            f"{list(stored.shape(scales))}, not [N, out, in / 32, 16] and [N, out, in / 32]",
        )
    experts, outputs, groups, _ = shape
    whole = experts, _BLOCK * groups, outputs
    stored_as = _grouped(stored, name, outputs, groups)

    def unpack(first: int, end: int) -> torch.Tensor:
        rows = [(expert * outputs, (expert + 1) * outputs) for expert in range(first, end)]
        return torch.stack([stored_as.unpack(*each).t() for each in rows])

    return PackedTensor(whole, (blocks, scales), unpack, stored_as)


def _grouped(stored: Checkpoint, name: str, outputs: int, groups: int) -> GroupedIntegers:
    """The codes, rows of all experts."""

    def read(first: int, end: int) -> GroupedRows:
        expert, row = divmod(first, outputs)
        where = (slice(expert, expert + 1), slice(row, row + end - first))
        packed, exponents = (stored.read(f"{name}_{part}", where)[0] for part in ("blocks", "scales"))
        codes = halves_of_bytes(packed).flatten(1)
        return GroupedRows(codes, None, _EXPONENT_SCALES[exponents.long()])

    group = torch.arange(_BLOCK * groups) // _BLOCK
    return GroupedIntegers(4, group, groups, "F8_E8M0", read, e2m1=True)
