"""Prompts of embeddings, from tensors of PyTorch and arrays of NumPy, neither of which is imported; and
vectors of answers."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagewire.v1 import pooling_pb2, prompt_pb2

FIELD = "prompt_embeds"
"""As in vLLM: {"prompt_embeds": tensor}."""
Precision = Literal["float32", "binary", "ubinary"]
"""As in sentence-transformers: numbers, or bytes with the signs of eight (int8 or uint8)."""


def to_tensor(prompt: Mapping[str, Any]) -> prompt_pb2.Tensor:
    """Returns the message of {"prompt_embeds": values [n, E]}; the server judges dtype and shape. Raises
    TypeError for other mappings and values."""
    values = prompt[FIELD]
    if len(prompt) != 1 or not hasattr(values, "dtype") or not hasattr(values, "shape"):
        raise TypeError(f"a prompt that is a mapping has one key, {FIELD!r}, with a tensor or an array")
    dtype, shape = str(values.dtype).removeprefix("torch."), tuple(values.shape)
    if hasattr(values, "detach"):
        values = values.detach().cpu().contiguous().view(sys.modules["torch"].uint8).numpy()
    return prompt_pb2.Tensor(dtype=dtype, shape=shape, data=values.tobytes())


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The vectors of one input's tokens: vectors[i] is that of token_ids[i]."""

    token_ids: list[int]
    vectors: list[list[float]]


def to_sparse_vectors(response: pooling_pb2.EmbedResponse) -> list[dict[int, float]]:
    """Returns the weights of each input, by token id."""
    return [dict(zip(each.token_ids, each.values, strict=True)) for each in response.embeddings]


def to_token_vectors(response: pooling_pb2.EmbedResponse) -> list[TokenVectors]:
    """Returns the vectors of the tokens of each input."""
    return [_of_tokens(list(each.token_ids), _numbers(each)) for each in response.embeddings]


def _of_tokens(token_ids: list[int], values: list[float]) -> TokenVectors:
    size = len(values) // len(token_ids)
    starts = range(0, len(values), size)
    return TokenVectors(token_ids, [values[start : start + size] for start in starts])


def to_vectors(response: pooling_pb2.EmbedResponse) -> list[list[float]]:
    """Returns the numbers of each vector; of packed signs the bytes, int8 or uint8."""
    return [_numbers(each) for each in response.embeddings]


def _numbers(vector: pooling_pb2.Embedding) -> list[float]:
    if vector.raw.dtype == "int8":
        return list(memoryview(vector.raw.data).cast("b"))
    return list(vector.raw.data) if vector.raw.dtype else list(vector.values)
