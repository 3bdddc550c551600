"""MXFP4: floats of 4 bits with an exponent for every 32, as gpt-oss's experts have them.

    NAME_blocks  [N, out, in / 32, 16] uint8   two values in a byte, the first one in the lower half
    NAME_scales  [N, out, in / 32] uint8       exponents of 2, plus 127

stand for NAME [N, in, out]: value * 2 ** (scale - 127). A value is a sign, 2 bits of exponent and 1 of
fraction.
"""

from collections.abc import Callable

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.formats.packed_tensor import PackedTensor
from worker.weights.loader import WHAT, Checkpoint

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = torch.tensor([*_POSITIVE, *(-value for value in _POSITIVE)])
_BLOCK = 32


def find_mxfp4(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    names = [name.removesuffix("_blocks") for name in stored.names() if name.endswith("_blocks")]
    return {name: _tensor(stored, name) for name in names}


def _tensor(stored: Checkpoint, name: str) -> PackedTensor:
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
    whole = shape[0], _BLOCK * shape[2], shape[1]
    return PackedTensor(whole, (blocks, scales), _unpacker(stored, blocks, scales))


def _unpacker(stored: Checkpoint, blocks: str, scales: str) -> Callable[[int, int], torch.Tensor]:
    """Returns what unpacks some experts to [n, in, out]."""

    def unpack(first: int, end: int) -> torch.Tensor:
        packed = stored.read(blocks, (slice(first, end),))
        exponents = stored.read(scales, (slice(first, end),)).int() - 127
        halves = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)  # [n, out, in / 32, 32]
        values = torch.ldexp(_VALUES[halves.int()], exponents[..., None])
        return values.flatten(-2).transpose(1, 2)

    return unpack
