"""Positions of a prompt at which something else stands in place of a token."""

from array import array

from engine_core.errors import Refused
from pagewire.ipc.columns import unpack_u32_array


def read_positions(path: str, column: bytes, prompt_len: int) -> "array[int]":
    """Returns the positions of a uint32 column. Raises Refused unless there are some, ascending, below the
    prompt's length."""
    try:
        positions = unpack_u32_array(column)
    except ValueError:
        raise Refused(path, "have positions that are no column") from None
    ascending = all(before < after for before, after in zip(positions, positions[1:], strict=False))
    if not positions or not ascending or positions[-1] >= prompt_len:
        raise Refused(path, f"must have ascending positions below {prompt_len}")
    return positions
