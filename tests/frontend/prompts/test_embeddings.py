"""Prompts of embeddings."""

import math
import struct

import pytest

from frontend.errors import InvalidRequest
from frontend.prompts.embeddings import is_finite, read_embeddings
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import prompt_pb2

LARGEST = {
    "float32": struct.pack("<f", -3.4028234e38),
    "float16": struct.pack("<e", -65504),
    "bfloat16": struct.pack("<f", -3.4028234e38)[2:],
}


def not_finite(dtype: str, value: float) -> bytes:
    if dtype == "float16":
        return struct.pack("<e", value)
    return struct.pack("<f", value)[2 if dtype == "bfloat16" else 0 :]


@pytest.mark.parametrize("dtype", LARGEST)
def test_largest_values_are_finite(dtype: str):
    assert is_finite(dtype, LARGEST[dtype] * 300_000)
    assert is_finite(dtype, bytes(len(LARGEST[dtype])))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("place", [0, 1, 150_000, 299_999])
def test_one_value_that_is_not(dtype: str, value: float, place: int):
    size = len(LARGEST[dtype])
    data = bytearray(LARGEST[dtype] * 300_000)
    data[place * size : (place + 1) * size] = not_finite(dtype, value)
    assert not is_finite(dtype, bytes(data))
    tensor = prompt_pb2.Tensor(dtype=dtype, shape=[1, 300_000], data=bytes(data))
    with pytest.raises(InvalidRequest, match="finite") as caught:
        read_embeddings(tensor, "prompt")
    assert list(caught.value.violations) == ["prompt.embeddings.data"]


def test_a_prompt_of_embeddings_counts_as_tokens_and_knows_none():
    tensor = prompt_pb2.Tensor(dtype="float16", shape=[2, 3], data=bytes(range(12)))
    read = read_embeddings(tensor, "prompt")
    assert len(read.token_ids) == 2 and not read.known_ids
    assert read.embeddings is not None and read.embeddings.dtype == "float16"
    assert read.embeddings.positions == pack_u32([0, 1]) and read.embeddings.values == bytes(range(12))
