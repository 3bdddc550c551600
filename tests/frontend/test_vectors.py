"""Vectors as clients get them."""

import numpy as np
import pytest
import torch

from frontend.errors import InvalidRequest
from frontend.validation.requests import DTYPES
from frontend.vectors import PACKED, as_dtype, split, write_vectors
from pagewire.v1 import pooling_pb2
from tests.logprob_columns import pack_f32

VALUES = [0.0, -0.0, 1.0, 1 + 2**-9, 1 + 3 * 2**-9, -3.14159, 1e-20, 65504.0, 1e-6, 2.0**-24]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in PACKED])
def test_raw_elements_are_rounded_as_torch_rounds_them(dtype: str):
    expected = torch.tensor(VALUES, dtype=torch.float32).to(getattr(torch, dtype))
    data = np.frombuffer(as_dtype(pack_f32(VALUES), dtype), np.uint8)
    assert data.tolist() == expected.view(torch.uint8).tolist()


def test_vectors_of_tokens_are_columns_of_one_size():
    assert split(pack_f32(VALUES), 5) == [pack_f32(VALUES[place : place + 2]) for place in range(0, 10, 2)]
    assert split(pack_f32(VALUES), 1) == [pack_f32(VALUES)]


def test_signs_are_packed_as_sentence_transformers_packs_them():
    """quantize_embeddings(): np.packbits(vectors > 0), and for "binary" (bytes - 128).astype(int8)."""
    values = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    values[:, ::7] = 0.0
    values[:, ::9] = -0.0
    for vector in values:
        packed = np.packbits(vector > 0)
        assert as_dtype(vector.tobytes(), "ubinary") == packed.tobytes()
        assert as_dtype(vector.tobytes(), "binary") == (packed - 128).astype(np.int8).tobytes()
    message = pooling_pb2.Embedding()
    write_vectors(values[0].tobytes(), "binary", message)
    assert (message.raw.dtype, list(message.raw.shape), len(message.raw.data)) == ("int8", [8], 8)


def test_a_value_that_float16_does_not_hold():
    with pytest.raises(InvalidRequest) as refused:
        as_dtype(pack_f32([1e6]), "float16")
    assert list(refused.value.violations) == ["raw_dtype"]


def test_numbers_or_raw_elements():
    numbers, raw = pooling_pb2.Embedding(), pooling_pb2.Embedding()
    write_vectors(pack_f32([1.5, -2]), "", numbers)
    write_vectors(pack_f32([1.5, -2]), "bfloat16", raw)
    assert list(numbers.values) == [1.5, -2] and not numbers.HasField("raw")
    assert not raw.values and raw.raw.dtype == "bfloat16" and list(raw.raw.shape) == [2]
    assert raw.raw.data == bytes([0xC0, 0x3F, 0x00, 0xC0])
    tokens = pooling_pb2.Embedding()
    write_vectors(pack_f32([1.5, -2]), "float32", tokens, [7, 8])
    assert list(tokens.raw.shape) == [2, 1] and list(tokens.token_ids) == [7, 8]
