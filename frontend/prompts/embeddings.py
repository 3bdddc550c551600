"""Prompts of embeddings: values that stand in place of token ids."""

from array import array
from math import isfinite

from frontend.errors import InvalidRequest
from frontend.prompts.prompt_encoding import TokenizedPrompt
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32, unpack_f32
from pagewire.v1 import prompt_pb2

_PIECE = 1 << 18
"""Bytes that are checked in one go: about 2 ms."""
_EXPONENT = 0x7C
"""Bits of the upper byte of a float16 that are all set in infinities and NaN."""
_NOT_FINITE = bytes(byte for byte in range(256) if byte & _EXPONENT == _EXPONENT)


def read_embeddings(tensor: prompt_pb2.Tensor, path: str) -> TokenizedPrompt:
    """Returns a prompt of values [n, E] that have passed frontend.validation.requests. path: of the prompt.
    Raises InvalidRequest where one is not finite."""
    data, count = tensor.data, tensor.shape[0]
    if not is_finite(tensor.dtype, data):
        raise InvalidRequest({f"{path}.embeddings.data": "must be finite numbers"})
    values = engine_pb2.InputEmbeddings(dtype=tensor.dtype, positions=pack_u32(range(count)), values=data)
    return TokenizedPrompt(array("I", bytes(4 * count)), embeddings=values)


def is_finite(dtype: str, data: bytes) -> bool:
    """Returns whether all of these little-endian elements are finite numbers. dtype: of EMBEDDING_DTYPES."""
    if dtype == "float16":
        upper = data[1::2]
        return len(upper.translate(None, _NOT_FINITE)) == len(upper)
    if dtype == "bfloat16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        data = bytes(wide)
    # So many float32 cannot overflow a sum in float64.
    return all(isfinite(sum(unpack_f32(data[at : at + _PIECE]))) for at in range(0, len(data), _PIECE))
