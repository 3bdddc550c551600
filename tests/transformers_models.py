"""Tiny checkpoints of model types that have no family here, made by transformers."""

from pathlib import Path
from typing import Any

import torch
import transformers

_SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
_KINDS = ["sliding_attention", "full_attention"]
DRIVEN: dict[str, dict[str, Any]] = {
    "Apertus": {},
    "BioGpt": {},
    "Cohere": {},
    "Cwm": {"head_dim": 12, "sliding_window": 9, "layer_types": _KINDS},
    "GPTBigCode": {},
    "GPTNeoX": {},
    "Gemma": {"head_dim": 16},
    "Glm": {"head_dim": 16},
    "HunYuanMoEV1": {"num_experts": 4, "moe_topk": [2, 2], "head_dim": 12},
    "Jais2": {},
    "NanoChat": {},
    "Nemotron": {},
    "Olmo": {},
    "Persimmon": {},
    "Phi": {"num_key_value_heads": 4},
    "VaultGemma": {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 9, "layer_types": _KINDS},
}
"""Prefixes of classes, with fields of their configurations: multi-query and multi-head attention, windows,
soft caps, layer norms, learned positions, partial rotation, experts, tied and scaled heads are among them."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Bloom": ({}, "0 attentions of 0 layers came through"),
    "Doge": ({"num_experts": 64}, "a mask of the model's own making"),
    "Falcon": ({}, "the code of FalconForCausalLM has no attention interface"),
    "FalconH1": ({}, "tokens reach one another beside attention"),
    "Lfm2": (
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
        "1 attentions of 1 layers",
    ),
    "Llama4Text": (
        {"head_dim": 12, "intermediate_size_mlp": 80, "num_local_experts": 4, "attention_chunk_size": 16},
        "attends neither to all tokens before nor by a window",
    ),
}
"""Prefixes of classes whose code cannot be driven, with the reason."""


def make_model(prefix: str, folder: Path, **fields: Any) -> Path:
    """Writes a configuration and random float32 weights, and returns the folder."""
    config = getattr(transformers, f"{prefix}Config")(**_SHAPE | fields)
    causal = getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")
    torch.manual_seed(0)
    model = causal(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # transformers makes biases 0 and norms 1: say something instead
            torch.nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)
    model.save_pretrained(folder)
    return folder
