"""Reads an adapter in a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it.

Tensors have the names of the base model's in such files with .lora_a or .lora_b behind them. All have one
alpha; the rank is that of their shapes. llama.cpp has the rows of queries and keys in its order of rotation
(worker.weights.formats.gguf), and so B's.
"""

import re
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pagewire.gguf.header import Header, TensorInfo, parse_header
from worker.adapters.adapter import AdapterError
from worker.adapters.config import AdapterConfig, read_alpha, read_token_ids
from worker.adapters.files import MAX_TENSORS, AdapterFile, check_finite, digest_of, read_once
from worker.config.gguf import find_family
from worker.models.base import LanguageModel
from worker.weights.formats.gguf import dequantize, hub_name, order_of_pairs

_TENSOR = re.compile(r"(.+)\.lora_([ab])")


def read_gguf(path: Path, max_bytes: int, model: LanguageModel) -> AdapterFile:
    """Reads a file whose general.type is adapter. Raises AdapterError, and StartupError for a header that is
    damaged. path: without links. model: the base, which has the size of heads."""
    content = read_once(path, max_bytes)
    header = parse_header(path, content)
    if len(header.tensors) > MAX_TENSORS:
        raise AdapterError(f"{path.name} has {len(header.tensors)} tensors, more than {MAX_TENSORS}")
    _expect(header, "general.type", "adapter")
    _expect(header, "adapter.type", "lora")
    pairs = find_family(header).rotary_pairs
    tensors: dict[str, torch.Tensor] = {}
    for name, info in header.tensors.items():
        module, half = _parse_name(name)
        tensor = _values(info, content)
        if pairs and half == "B" and re.search(r"\.attn_[qk]\.", name):
            tensor = _in_halves(name, tensor, model)
        tensors[f"{module}.lora_{half}.weight"] = tensor
    config = _read_config(header.metadata)
    return AdapterFile(config, tensors, digest_of(config, content))


def _read_config(metadata: Mapping[str, Any]) -> AdapterConfig:
    """Raises AdapterError. Where alpha is 0, llama.cpp takes 1 as the scale."""
    alpha, invocation = metadata.get("adapter.lora.alpha"), "adapter.alora.invocation_tokens"
    ids = metadata.get(invocation)
    return AdapterConfig(
        rank=None,
        alpha=None if alpha == 0 else read_alpha("adapter.lora.alpha", alpha),
        invocation=read_token_ids(invocation, ids.tolist() if isinstance(ids, array) else ids),
        base=str(metadata.get("general.base_model.0.name", "")),
    )


def _expect(header: Header, key: str, value: str) -> None:
    if (found := header.metadata.get(key)) != value:
        raise AdapterError(f"{header.path.name}: {key} is {found!r}, not {value!r}")


def _parse_name(name: str) -> tuple[str, str]:
    """Returns a tensor's module as Hugging Face checkpoints name it, and "A" or "B". Raises AdapterError."""
    match = _TENSOR.fullmatch(name)
    found = match and hub_name(match[1])
    if match is None or not found or found == match[1] or not found.endswith(".weight"):
        raise AdapterError(f"tensor {name} is not known")
    return found.removesuffix(".weight"), match[2].upper()


def _values(info: TensorInfo, content: bytes) -> torch.Tensor:
    """Returns a matrix: float16 and bfloat16 as they are, others as float32."""
    if len(info.shape) != 2:
        raise AdapterError(f"tensor {info.name} has shape {list(info.shape)}, which is no matrix")
    stored = bytearray(content[info.offset : info.offset + info.num_bytes])
    rows = torch.frombuffer(stored, dtype=torch.uint8).view(info.shape[0], info.row_bytes)
    kept = {"F16": torch.float16, "BF16": torch.bfloat16}.get(info.type.name)
    tensor = dequantize(rows, info.type) if kept is None else rows.view(kept)
    check_finite(info.name, tensor)
    return tensor


def _in_halves(name: str, b: torch.Tensor, model: LanguageModel) -> torch.Tensor:
    """Returns the rows [out, r] of B of queries or keys in the order of Hugging Face checkpoints."""
    heads = model.attention_heads()
    head_dim = 0 if heads is None else heads[0]
    if not head_dim or len(b) % head_dim or head_dim % 2:
        raise AdapterError(f"tensor {name} has {len(b)} rows, which are no heads of the model")
    return b[order_of_pairs(len(b), len(b) // head_dim)]
