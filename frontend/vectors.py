"""Vectors in the forms that clients ask for."""

import struct
from array import array

from frontend.errors import InvalidRequest
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import pooling_pb2


def write_vector(values: bytes, raw_dtype: str, embedding: pooling_pb2.Embedding) -> None:
    """Writes a float32 column into a message: as numbers, or as raw elements of another type if one is named.
    Raises InvalidRequest when a value does not fit into it."""
    if not raw_dtype:
        embedding.values.extend(unpack_f32_array(values))
        return
    embedding.raw.dtype = raw_dtype
    embedding.raw.shape.append(len(values) // 4)
    embedding.raw.data = as_dtype(values, raw_dtype)


def as_dtype(values: bytes, dtype: str) -> bytes:
    """Returns a float32 column as little-endian elements of another type, rounded to nearest, ties to even.

    dtype: one of validation.requests.DTYPES. Raises InvalidRequest.
    """
    if dtype == "float32":
        return values
    if dtype == "bfloat16":
        words = struct.unpack(f"<{len(values) // 4}I", values)
        return array("H", [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words]).tobytes()
    numbers = unpack_f32_array(values)
    try:
        return struct.pack(f"<{len(numbers)}e", *numbers)
    except OverflowError:
        raise InvalidRequest({"raw_dtype": "float16 cannot hold a value of the vector"}) from None
