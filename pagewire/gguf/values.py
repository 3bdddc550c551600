"""Small tensors of a GGUF file as Python numbers, for processes without numpy."""

from array import array

from pagewire.errors import StartupError
from pagewire.gguf.header import WHAT, Header
from pagewire.gguf.tensor_types import F32

MOST_VALUES = 1 << 16


def read_floats(header: Header, name: str) -> list[float]:
    """Returns the values of a tensor of type F32. Raises StartupError."""
    info = header.tensors[name]
    if info.type != F32 or info.num_bytes > MOST_VALUES * F32.block_bytes:
        raise StartupError(
            WHAT, f"{header.path}: tensor {name!r} must be F32 with at most {MOST_VALUES} values"
        )
    try:
        with header.path.open("rb") as file:
            file.seek(info.offset)
            return list(array("f", file.read(info.num_bytes)))
    except (OSError, ValueError) as error:
        raise StartupError(WHAT, f"{header.path}: {error}") from error
