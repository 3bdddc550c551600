"""Vectors in the forms that clients ask for."""

import struct
from array import array
from collections.abc import Sequence

from frontend.errors import InvalidRequest
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import pooling_pb2

PACKED = {"binary": "int8", "ubinary": "uint8"}
"""Types of eight signs in a byte, by the names that sentence-transformers has for them; and of that byte."""


def write_vectors(
    values: bytes, raw_dtype: str, embedding: pooling_pb2.Embedding, token_ids: Sequence[int] = ()
) -> None:
    """Writes a float32 column into a message: as numbers, or as raw elements of another type if one is named.
    token_ids: whose vectors these are; empty: it is one vector. Raises InvalidRequest when a value does not
    fit into the type."""
    embedding.token_ids.extend(token_ids)
    if not raw_dtype:
        embedding.values.extend(unpack_f32_array(values))
        return
    size = len(values) // 4 // (len(token_ids) or 1)
    embedding.raw.dtype = PACKED.get(raw_dtype, raw_dtype)
    shape = [len(token_ids)] if token_ids else []
    embedding.raw.shape.extend([*shape, size // 8 if raw_dtype in PACKED else size])
    embedding.raw.data = as_dtype(values, raw_dtype)


def split(column: bytes, count: int) -> list[bytes]:
    """Returns the vectors of so many tokens, each a column. column: of all of them."""
    size = len(column) // count
    return [column[start : start + size] for start in range(0, len(column), size)]


def nonzero(values: bytes) -> tuple[list[int], list[float]]:
    """Returns the places and values of the elements of a float32 column that are not 0."""
    found = [(place, value) for place, value in enumerate(unpack_f32_array(values)) if value]
    return [place for place, _ in found], [value for _, value in found]


def as_dtype(values: bytes, dtype: str) -> bytes:
    """Returns a float32 column as little-endian elements of another type, rounded to nearest, ties to even;
    of PACKED, eight signs to a byte.

    dtype: one of validation.requests.DTYPES. Raises InvalidRequest.
    """
    if dtype == "float32":
        return values
    if dtype in PACKED:
        return _signs(values, dtype)
    if dtype == "bfloat16":
        words = struct.unpack(f"<{len(values) // 4}I", values)
        return array("H", [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words]).tobytes()
    numbers = unpack_f32_array(values)
    try:
        return struct.pack(f"<{len(numbers)}e", *numbers)
    except OverflowError:
        raise InvalidRequest({"raw_dtype": "float16 cannot hold a value of the vector"}) from None


def _signs(values: bytes, dtype: str) -> bytes:
    """Returns a bit per element, 1 for those above 0, the first as the highest of its byte. dtype: "ubinary",
    or "binary": the bytes less 128."""
    bits = "".join("01"[number > 0] for number in unpack_f32_array(values))
    packed = int(bits, 2).to_bytes(len(bits) // 8)
    return packed if dtype == "ubinary" else bytes(byte ^ 0x80 for byte in packed)
