"""Prompt tuning and P-tuning of peft: trained embeddings (virtual tokens) that stand before each prompt."""

from collections.abc import Mapping
from typing import Any

import torch

from worker.adapters.adapter import AdapterError, check_known, wrong_field

KINDS = ("PROMPT_TUNING", "P_TUNING")
"""Values of peft_type. Files of both hold embeddings alone: what trained them has no part in outputs."""
MAX_VIRTUAL_TOKENS = 4096
VIRTUAL_TOKENS = "prompt_embeddings"
"""The tensor."""
_READ = frozenset(
    {"peft_type", "base_model_name_or_path", "num_virtual_tokens", "num_transformer_submodules"}
)
_OF_TRAINING = frozenset(
    {"auto_mapping", "encoder_dropout", "encoder_hidden_size", "encoder_num_layers", "inference_mode"}
    | {"encoder_reparameterization_type", "peft_version", "prompt_tuning_init", "prompt_tuning_init_text"}
    | {"revision", "task_type", "tokenizer_kwargs", "tokenizer_name_or_path"}
)
_OF_SHAPE = frozenset({"token_dim", "num_attention_heads", "num_layers", "modules_to_save"})
"""These say which tensors the file has, or what the base model has."""


def read_num_virtual_tokens(values: Mapping[str, Any]) -> int:
    """Returns how many tokens an adapter_config.json of one of KINDS puts before prompts. Raises AdapterError
    with the name of the field."""
    check_known(values, _READ | _OF_TRAINING | _OF_SHAPE)
    if (modules := values.get("num_transformer_submodules")) not in (None, 1):
        raise wrong_field("num_transformer_submodules", modules, "the model has one, a decoder")
    count = values.get("num_virtual_tokens")
    if type(count) is not int or not 1 <= count <= MAX_VIRTUAL_TOKENS:
        raise wrong_field("num_virtual_tokens", count, f"must be an integer from 1 to {MAX_VIRTUAL_TOKENS}")
    return count


def virtual_tokens(tensors: Mapping[str, torch.Tensor], count: int) -> torch.Tensor:
    """Returns the embeddings [count, E] that a file holds. Raises AdapterError."""
    if others := sorted(tensors.keys() - {VIRTUAL_TOKENS}):
        raise AdapterError(f"tensor {others[0]}: an adapter of virtual tokens has {VIRTUAL_TOKENS} alone")
    found = tensors.get(VIRTUAL_TOKENS)
    if found is None:
        raise AdapterError(f"the adapter has no tensor {VIRTUAL_TOKENS}")
    if found.ndim != 2 or len(found) != count:
        raise AdapterError(f"tensor {VIRTUAL_TOKENS} has shape {list(found.shape)}, not [{count}, E]")
    return found
