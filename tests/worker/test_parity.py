"""Every family computes what transformers computes, however its work is cut into steps."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import FAMILIES, MULTIPLIERS, VOCAB_SIZE
from tests.worker.fakes import Driver

FIRST = ("llama", "gpt2")
"""Families of which all prompts are cut in all ways; the others are made of the same parts."""
Reference = list[tuple[list[int], list[torch.Tensor]]]

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.0, 2.0, 3.0],
}
BY_KIND = {
    "full_attention": YARN,
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral, window, one expert of many": (
        "mixtral",
        {"sliding_window": 7, "num_local_experts": 17, "num_experts_per_tok": 1, "head_dim": 20},
    ),
    "qwen2_moe, some layers, normalized, windows": (
        "qwen2_moe",
        {"decoder_sparse_step": 2, "norm_topk_prob": True, "use_sliding_window": True}
        | {"sliding_window": 7, "num_key_value_heads": 1},
    ),
    "qwen3_moe, all experts, a dense layer, biases": (
        "qwen3_moe",
        {"num_experts_per_tok": 6, "mlp_only_layers": [1], "attention_bias": True, "norm_topk_prob": False},
    ),
    "qwen3_next, odd heads, two taps, a dense layer, biases": (
        "qwen3_next",
        {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 2}
        | {"mlp_only_layers": [2], "attention_bias": True, "norm_topk_prob": False},
    ),
    "qwen2_moe, no shared expert": ("qwen2_moe", {"shared_expert_intermediate_size": 0}),
    "dots1, no shared experts": ("dots1", {"n_shared_experts": 0, "first_k_dense_replace": 1}),
    "qwen3_next, no experts": ("qwen3_next", {"num_experts": 0}),
    "qwen3_next, wide values, whole heads rotated": (
        "qwen3_next",
        {"linear_key_head_dim": 5, "linear_value_head_dim": 37, "linear_conv_kernel_dim": 5}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}},
    ),
    "qwen3_5, attention in each second layer, tied, one KV head": (
        "qwen3_5",
        {"layer_types": None, "full_attention_interval": 2, "tie_word_embeddings": True}
        | {"num_key_value_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16},
    ),
    "granite_hybrid, no experts, rotation, other biases, tied": (
        "granite_hybrid",
        {"num_local_experts": 0, "position_embedding_type": "rope", "tie_word_embeddings": True}
        | {"mamba_conv_bias": False, "mamba_proj_bias": True, "attention_bias": True}
        | {"mamba_n_groups": 1, "mamba_d_conv": 2},
    ),
    "gemma, a head for each query, biases, its activation by its first name": (
        "gemma",
        {"num_key_value_heads": 4, "attention_bias": True, "hidden_act": "gelu", "head_dim": 24},
    ),
    "glm, one KV head, no biases, tied": (
        "glm",
        {"num_key_value_heads": 1, "attention_bias": False, "tie_word_embeddings": True, "head_dim": 8},
    ),
    "ernie, biases, other angles, a head of its own": (
        "ernie",
        {"use_bias": True, "tie_word_embeddings": False, "head_dim": 12}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    ),
    "falcon_h1, a norm, rotation of one KV head, odd heads, tied": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "num_key_value_heads": 1}
        | {"mamba_n_heads": 3, "mamba_d_head": 32, "mamba_n_groups": 3, "mamba_d_state": 37}
        | {"mamba_conv_bias": False, "mamba_d_conv": 2, "tie_word_embeddings": True, "head_dim": 12},
    ),
    "falcon_h1, without factors, all sizes by default": (
        "falcon_h1",
        {"mamba_d_ssm": None, "mamba_d_head": "auto", "mlp_multipliers": None, "ssm_multipliers": None}
        | {name: 1.0 for name, value in MULTIPLIERS.items() if isinstance(value, float)},
    ),
    "bamba, odd heads, a wide state, five taps, biases": (
        "bamba",
        {"mamba_n_heads": 3, "mamba_d_head": 32, "mamba_n_groups": 3, "mamba_d_state": 37, "mamba_d_conv": 5}
        | {"attn_layer_indices": [0, 2], "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    ),
    "glm4_moe, norms, whole heads, weights that are not normalized": (
        "glm4_moe",
        {"use_qk_norm": True, "attention_bias": True, "norm_topk_prob": False, "n_group": 1, "topk_group": 1}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}},
    ),
    "llama4, two experts, dense layers, no norms, chunks of three": (
        "llama4",
        {"num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "use_qk_norm": False}
        | {"attention_bias": True, "attention_chunk_size": 3, "floor_scale": 1}
        | {"rope_parameters": LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.0}},
    ),
    "llama4, positions in all layers, one KV head, tied": (
        "llama4",
        {"no_rope_layers": [1, 1, 1], "num_key_value_heads": 1, "rope_parameters": LLAMA3}
        | {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"]}
        | {"tie_word_embeddings": True, "attn_temperature_tuning": False, "moe_layers": [0]},
    ),
    "olmoe, normalized, one KV head, tied": (
        "olmoe",
        {"norm_topk_prob": True, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "phi3, long rope of a part of each head": (
        "phi3",
        {
            "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.5},
            "original_max_position_embeddings": 32,
        },
    ),
    "phi3, one KV head, window": ("phi3", {"num_key_value_heads": 1, "sliding_window": 7}),
    "smollm3, windows without positions, biases": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 7, "attention_bias": True, "mlp_bias": True},
    ),
    "granite, tied, biases": (
        "granite",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "starcoder2, window, no biases, untied": (
        "starcoder2",
        {"sliding_window": 11, "use_bias": False, "tie_word_embeddings": False},
    ),
    "stablelm, side by side, biases": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "seed_oss, other biases": (
        "seed_oss",
        {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "ministral, one window": (
        "ministral",
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "head_dim": 20},
    ),
    "gemma2, caps that bite": (
        "gemma2",
        {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0, "attention_bias": True},
    ),
    "gemma2, no caps, untied": (
        "gemma2",
        {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "num_key_value_heads": 4,
        },
    ),
    "gemma3, angles by kind of layer, caps": (
        "gemma3",
        {
            "rope_parameters": BY_KIND,
            "final_logit_softcapping": 5.0,
            "sliding_window": 3,
        },
    ),
    "gemma4, experts, keys that are values, other KV heads, a cap": (
        "gemma4",
        {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0}
        | {"final_logit_softcapping": 4.0, "hidden_size_per_layer_input": 0, "tie_word_embeddings": False},
    ),
    "gemma4, most layers share, wide ones, biases": (
        "gemma4",
        {"num_kv_shared_layers": 4, "use_double_wide_mlp": True, "attention_bias": True, "sliding_window": 3},
    ),
    "glm4, whole heads, no biases": (
        "glm4",
        {
            "rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 1.0},
            "attention_bias": False,
        },
    ),
    "olmo2, biases, yarn": ("olmo2", {"attention_bias": True, "rope_parameters": YARN}),
    "olmo3, yarn where attention is full": (
        "olmo3",
        {"rope_parameters": BY_KIND, "num_key_value_heads": 1},
    ),
    "cohere2, biases, other scale": ("cohere2", {"attention_bias": True, "logit_scale": 2.0}),
    "exaone4, full attention with positions": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
    ),
    "deepseek_v2, no groups, one dense layer, plain angles, whole queries": (
        "deepseek_v2",
        {
            "topk_method": "greedy",
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "deepseek_v3, experts everywhere, neighbours apart": (
        "deepseek_v3",
        {"first_k_dense_replace": 0, "rope_interleave": False, "norm_topk_prob": False, "v_head_dim": 16},
    ),
    "glm4_moe_lite, experts below": ("glm4_moe_lite", {"mlp_layer_types": ["sparse", "sparse", "dense"]}),
    "youtu, queries as they are, neighbours apart, biases": (
        "youtu",
        {
            "q_lora_rank": None,
            "rope_interleave": False,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            "v_head_dim": 17,
            "tie_word_embeddings": False,
        },
    ),
    "youtu, an odd latent, one head": (
        "youtu",
        {"kv_lora_rank": 27, "num_attention_heads": 1, "num_key_value_heads": 1, "qk_nope_head_dim": 5},
    ),
    "llama, tied, all biases, head size of its own": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 20},
    ),
    "llama, one KV head, gelu": ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu"}),
    "llama, rope linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ),
    "llama, rope dynamic": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
            "max_position_embeddings": 24,
        },
    ),
    "llama, rope llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, rope yarn": ("llama", {"rope_parameters": YARN}),
    "llama, rope yarn with every field": (
        "llama",
        {
            "rope_parameters": YARN
            | {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.4, "mscale_all_dim": 0.7, "truncate": False}
        },
    ),
    "mistral, window smaller than a block": ("mistral", {"sliding_window": 3}),
    "mistral, window": ("mistral", {"sliding_window": 11, "head_dim": 16}),
    "qwen2, tied, window in the upper layers": ("qwen2", {"tie_word_embeddings": True, **WINDOW}),
    "qwen3, biases, window in the upper layers": ("qwen3", {"attention_bias": True, **WINDOW}),
    "opt, as 350m": ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "opt, no biases, bare norms, untied": (
        "opt",
        {"enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
    ),
    "opt, no last norm": ("opt", {"_remove_final_layer_norm": True}),
    "gpt2, scaled by layer, untied, inner size": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "n_inner": 100},
    ),
    "gpt2, unscaled": ("gpt2", {"scale_attn_weights": False, "initializer_range": 0.1}),
}


def prompts(count: int, longest: int = 60) -> list[list[int]]:
    """Mixed lengths, 1 among them."""
    rng = random.Random(1)
    lengths = [1, longest, *(rng.randint(2, longest) for _ in range(count - 2))]
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


@torch.inference_mode()
def reference(folder: Path, inputs: list[list[int]], max_tokens: int) -> Reference:
    """Greedy tokens and the logits behind them, by transformers, prompt by prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    counts = model.config.model_type == "bamba"  # whose code rotates as at position 0 in each call
    results = []
    for prompt in inputs:
        model(torch.tensor([[0]]))  # dynamic rope keeps the longest context that it saw, until a short one
        out = model(torch.tensor([prompt]), use_cache=True)
        tokens: list[int] = []
        logits: list[torch.Tensor] = []
        while True:
            logits.append(out.logits[0, -1])
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == max_tokens:
                break
            place = {"position_ids": torch.tensor([[len(prompt) + len(tokens) - 1]])} if counts else {}
            out = model(
                torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True, **place
            )
        results.append((tokens, logits))
    return results


def assert_equal(
    driver: Driver, inputs: list[list[int]], expected: Reference, delivered: Sequence[int] = ()
) -> None:
    """All prompts at once give the tokens, and the logits to 1e-4 of their range. delivered: tokens that each
    sequence has already, as those that are resumed."""
    delivered = delivered or [0] * len(inputs)
    sequences = [
        driver.add(prompt, len(tokens), delivered=tokens[:count])[0]
        for prompt, (tokens, _), count in zip(inputs, expected, delivered, strict=True)
    ]
    driver.run()
    assert len(driver.free) == driver.ready.num_blocks
    for sequence, (tokens, logits), count in zip(sequences, expected, delivered, strict=True):
        assert sequence.output == tokens
        ours, theirs = torch.stack(sequence.logits), torch.stack(logits[count:])
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("family", FIRST)
def test_twenty_prompts_at_once(family: str, checkpoint: Callable[..., Path]):
    folder = checkpoint(family)
    inputs = prompts(20)
    expected = reference(folder, inputs, 8)
    assert_equal(Driver(folder), inputs, expected)
    # Prompts cut into odd pieces, decoding rows and pieces of prompts in one step.
    assert_equal(Driver(folder, budget=37, shuffle=1), inputs, expected)
    # Fewer tokens per step than rows, one token per block.
    assert_equal(Driver(folder, budget=7, shuffle=2, block_size=1, num_blocks=2000), inputs[:6], expected[:6])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of shared experts without a size
@pytest.mark.parametrize("variant", [*VARIANTS, *(name for name in FAMILIES if name not in FIRST)])
def test_variants(variant: str, checkpoint: Callable[..., Path]):
    """Every family as tests.checkpoints makes it, and with other fields that change what is computed. All at
    once; then in odd pieces, beside rows that are resumed."""
    family, overrides = VARIANTS.get(variant, (variant, {}))
    folder = checkpoint(family, **overrides)
    inputs = prompts(4, longest=44)
    expected = reference(folder, inputs, 5)
    assert_equal(Driver(folder), inputs, expected)
    assert_equal(Driver(folder, budget=13, shuffle=1), inputs, expected, delivered=(0, 0, 3, 2))


def test_rows_join_and_leave(checkpoint: Callable[..., Path]):
    """Rows and blocks change hands while others decode; a row may end and begin in one plan."""
    folder = checkpoint("llama")
    inputs = prompts(20)
    expected = reference(folder, inputs, 8)
    driver = Driver(folder, max_num_seqs=3, num_blocks=60, budget=40)
    ran = []
    for prompt, (tokens, _) in zip(inputs, expected, strict=True):
        while not driver.free_rows:
            driver.step()
        ran.append((driver.add(prompt, 1 + len(ran) % 8)[0], tokens))
    driver.run()
    assert len(ran) == 20
    for sequence, tokens in ran:
        assert sequence.output == tokens[: sequence.max_tokens]
