"""MXFP4: floats of 4 bits with an exponent for every 32, as gpt-oss's experts have them.

    NAME_blocks  [N, out, in / 32, 16] uint8   two values in a byte, the first one in the lower half
    NAME_scales  [N, out, in / 32] uint8       exponents of 2, plus 127

stand for NAME [N, in, out]: value * 2 ** (scale - 127). A value is a sign, 2 bits of exponent and 1 of
fraction; an exponent of 255 is not a number.
"""

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.packed_tensor import PackedTensor, halves_of_bytes
from worker.weights.source import WHAT, GroupedIntegers, GroupedRows

_BLOCK = 32
_SCALES = torch.tensor([*(2.0 ** (exponent - 128) for exponent in range(255)), torch.nan])
"""By exponent, of twice the values."""


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
        return GroupedRows(codes, None, _SCALES[exponents.long()])

    group = torch.arange(_BLOCK * groups) // _BLOCK
    return GroupedIntegers(4, group, groups, "F8_E8M0", read, e2m1=True)
