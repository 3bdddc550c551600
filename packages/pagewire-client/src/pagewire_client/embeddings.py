"""Prompts of embeddings, from tensors of PyTorch and arrays of NumPy, neither of which is imported."""

import sys
from collections.abc import Mapping
from typing import Any

from pagewire.v1 import prompt_pb2

FIELD = "prompt_embeds"
"""As in vLLM: {"prompt_embeds": tensor}."""


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
