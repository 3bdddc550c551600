"""Numbers of weights: as published, and as the real models have them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire_simulated.weights import count_weights
from tests.checkpoints import ENCODERS
from tests.checkpoints import FAMILIES as CHECKPOINTS
from worker.families.registry import DECODERS, read_model_config
from worker.models.registry import FAMILIES
from worker.parallel import Placement


def gated(architecture: str, e: int, i: int, layers: int, heads: int, kv: int, v: int, **more: Any) -> Any:
    names = {"hidden_size": e, "intermediate_size": i, "num_hidden_layers": layers, "vocab_size": v}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv}
    return {"architectures": [architecture], **names, **heads_of, **more}


LLAMA_3_8B = gated("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128256)
OPT = {"architectures": ["OPTForCausalLM"], "vocab_size": 50272, "max_position_embeddings": 2048}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3-8B": (LLAMA_3_8B, 8_030_261_248),
    "Mistral-7B-v0.1": (gated("MistralForCausalLM", 4096, 14336, 32, 32, 8, 32000), 7_241_732_096),
    "Qwen2.5-0.5B": (
        gated("Qwen2ForCausalLM", 896, 4864, 24, 14, 2, 151936, tie_word_embeddings=True),
        494_032_768,
    ),
    "Qwen3-0.6B": (
        gated("Qwen3ForCausalLM", 1024, 3072, 28, 16, 8, 151936, head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "GPT-2": (
        {"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257}
        | {"n_embd": 768, "n_layer": 12, "n_head": 12},
        124_439_808,
    ),
    "OPT-125m": (
        OPT | {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
        125_239_296,
    ),
    "OPT-350m": (
        OPT
        | {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
        331_196_416,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str, tmp_path: Path):
    fields, total = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert count_weights(read_model_config(tmp_path)).total == total


def test_matrices_of_a_model(tmp_path: Path):
    """Llama-3-8B: q and o 4096 x 4096, k and v 4096 x 1024, three of 4096 x 14336."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    counts = count_weights(read_model_config(tmp_path))
    assert counts.layer == 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert counts.head == 128256 * 4096


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("starcoder2", {}),
        ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
        ("gemma3", {}),
        ("olmo2", {}),
        ("cohere2", {"attention_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("youtu", {"attention_bias": True}),
        ("youtu", {"q_lora_rank": None}),
        ("qwen2_moe", {"decoder_sparse_step": 2}),
        ("glm4_moe", {"use_qk_norm": True}),
        ("gpt_oss", {}),
        ("llama4", {"interleave_moe_layer_step": 2, "attention_bias": True}),
        ("gemma4", {"use_double_wide_mlp": True, "attention_bias": True}),
        (
            "gemma4",
            {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        ),
        *((family, {}) for family in ENCODERS),
        ("gpt2", {}),
        ("gpt2", {"tie_word_embeddings": False, "n_inner": 50}),
        ("opt", {}),
        ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
        ("opt", {"word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    ],
)
def test_as_the_real_model(family: str, overrides: dict[str, Any], checkpoint: Callable[..., Path]):
    config = read_model_config(checkpoint(family, **overrides))
    model = FAMILIES[config.architecture].build(config, Placement(torch.float32, torch.device("cpu")))
    assert count_weights(config).total == sum(parameter.numel() for parameter in model.parameters())


def test_every_family_can_be_counted(checkpoint: Callable[..., Path]):
    """A new family must say how many weights it has."""
    seen = {read_model_config(checkpoint(family)).architecture for family in (*CHECKPOINTS, *ENCODERS)}
    beside_images = {name for name, family in DECODERS.items() if family.nested}  # the same decoders
    assert seen == DECODERS.keys() - beside_images
