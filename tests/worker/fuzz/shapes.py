"""Random shapes of every family: fields that tests.checkpoints.make_checkpoint takes."""

import random
from typing import Any

from tests.checkpoints import FAMILIES, MULTIPLIERS

Fields = dict[str, Any]

OWN_HEAD_SIZE = frozenset(
    {
        "llama",
        "mistral",
        "ministral",
        "qwen3",
        "seed_oss",
        "gemma",
        "glm",
        "ernie",
        "gemma2",
        "gemma3",
        "glm4",
        "mixtral",
        "qwen3_moe",
    }
    | {"qwen3_next", "qwen3_5", "qwen3_5_moe", "glm4_moe", "minimax_m2", "gpt_oss", "dots1", "llama4"}
    | {"gemma4"}
)
"""Families whose head size does not follow from the width."""
LATENT = frozenset({"youtu", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"})
LINEAR = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe"})
MAMBA = frozenset({"granite_hybrid", "bamba", "falcon_h1"})
PARTIAL = frozenset({"phi3", "stablelm", "glm", "glm4", "glm4_moe", *LINEAR})
BY_KIND = frozenset({"gemma3", "olmo3"})
"""Families with rotary parameters for each kind of layer."""
WINDOWED = frozenset({"mistral", "ministral", "phi3", "starcoder2", "mixtral", "gpt_oss"} | BY_KIND) | {
    *("gemma2", "cohere2", "exaone4", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3", "dots1")
}
KINDS_OF_LAYERS = frozenset({"ministral", "gemma2", "cohere2", "exaone4", "gpt_oss"} | BY_KIND)
SWITCHED = frozenset({"qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3"})
"""Families whose windows count where `use_sliding_window` says so."""
BIASED = frozenset(
    {"llama", "granite", "smollm3", "qwen3", "olmo2", "olmo3", "cohere2", "gemma2", "glm4"}
) | {
    *("qwen3_moe", "glm4_moe", "dots1", "olmoe", "gpt_oss", "youtu", "deepseek_v3", "seed_oss", "qwen3_next"),
    *(MAMBA - {"falcon_h1"}),
}
COUNT_OF_EXPERTS = {
    **dict.fromkeys(("mixtral", "granitemoe", "minimax_m2", "gpt_oss", "llama4"), "num_local_experts"),
    "granite_hybrid": "num_local_experts",
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe", "olmoe"), "num_experts"),
    **dict.fromkeys(("glm4_moe", "dots1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "n_routed_experts"),
}
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "gelu_new", "quick_gelu")
CONTEXT = 256


def draw_shape(family: str, draw: random.Random) -> Fields:
    """Returns fields of one random model."""
    if family in ("gpt2", "opt"):
        return _learned_positions(family, draw)
    fields = _sizes(family, draw)
    num_layers = fields["num_hidden_layers"]
    if family in LATENT:
        fields |= _latents(draw)
    if family == "deepseek_v2":  # whose code rotates complex numbers where they stand
        fields |= {name: fields[name] + fields[name] % 2 for name in ("kv_lora_rank", "qk_nope_head_dim")}
    rotated = fields["qk_rope_head_dim"] if family in LATENT else fields.pop("_head_size")
    fields |= _rotation(family, rotated, draw)
    if family in COUNT_OF_EXPERTS:
        fields |= _experts(family, num_layers, draw)
    if family in LINEAR:
        fields |= _delta(num_layers, draw)
    if family in MAMBA:
        fields |= _mamba(family, num_layers, 2 * fields["hidden_size"], draw)
    if family in WINDOWED:
        fields |= _windows(family, num_layers, draw)
    if family == "llama4":
        fields |= _chunks(fields, draw)
    if family == "gemma4":
        return fields | _gemma4(fields, draw)
    if family in BIASED and draw.random() < 0.5:
        fields["attention_bias"] = draw.random() < 0.7
    if family == "youtu" or draw.random() < 0.4:
        fields["tie_word_embeddings"] = draw.random() < 0.5
    if family not in {*LINEAR, *MAMBA, "gpt_oss"} and draw.random() < 0.3:
        fields["hidden_activation" if family in ("gemma2", "gemma3") else "hidden_act"] = draw.choice(
            ACTIVATIONS
        )
    return fields


def _learned_positions(family: str, draw: random.Random) -> Fields:
    heads, size, layers = draw.randint(1, 5), draw.randint(3, 40), draw.randint(1, 3)
    vocab = {"vocab_size": draw.randint(259, 700), "tie_word_embeddings": draw.random() < 0.5}
    activation = {"activation_function": draw.choice(ACTIVATIONS)}
    if family == "gpt2":
        sizes = {
            "n_embd": heads * size,
            "n_head": heads,
            "n_layer": layers,
            "n_inner": draw.choice([None, 37]),
        }
        return sizes | vocab | activation
    width = heads * size
    return (
        vocab
        | activation
        | {
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "ffn_dim": draw.randint(5, 150),
            "word_embed_proj_dim": draw.choice([width, width, 29]),
            "do_layer_norm_before": draw.random() < 0.7,
            "enable_bias": draw.random() < 0.7,
        }
    )


def _sizes(family: str, draw: random.Random) -> Fields:
    """Heads, widths, layers and vocabulary; `_head_size` is what follows from them."""
    kv_heads, of_each = draw.choice([1, 1, 2, 3, 4]), draw.choice([1, 1, 2, 3, 5, 7])
    heads = kv_heads * of_each
    size = 8 * draw.choice([*range(2, 9), *range(2, 9), *range(9, 33)])
    own = family in OWN_HEAD_SIZE
    size = min(size, 1024 // heads // 8 * 8) if not own else size
    width = heads * (draw.randint(5, 23) if own else size)
    fields: Fields = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if family in LATENT else kv_heads,
        "num_hidden_layers": draw.randint(1, 4),
        "intermediate_size": draw.randint(9, 200),
        "vocab_size": draw.randint(259, 700),
        "max_position_embeddings": CONTEXT,
        "_head_size": size,
    }
    if family in LATENT:
        del fields["_head_size"]
        fields["hidden_size"] = heads * draw.randint(5, 23)
    elif own or family == "stablelm":
        fields["head_dim"] = size
    return fields


def _latents(draw: random.Random) -> Fields:
    return {
        "q_lora_rank": draw.choice([None, draw.randint(5, 60)]),
        "kv_lora_rank": draw.randint(7, 90),
        "qk_nope_head_dim": draw.randint(1, 40),
        "qk_rope_head_dim": 2 * draw.randint(2, 20),
        "v_head_dim": draw.randint(1, 40),
    }


def _rotation(family: str, size: int, draw: random.Random) -> Fields:
    if family == "minimax_m2":
        return {"rotary_dim": 2 * draw.randint(2, size // 2)}
    if family == "bamba":  # which rotates half of each head, whatever its file says
        return {"rope_parameters": _rope(size, 0.5, draw, ("default",))}
    part = draw.choice([1.0, 0.5, 0.25]) if family in PARTIAL else None
    if family in BY_KIND:
        return {
            "rope_parameters": {
                "full_attention": _rope(size, None, draw),
                "sliding_attention": _rope(size, None, draw, ("default",)),
            }
        }
    if family == "phi3":
        fields = {"rope_parameters": _rope(size, part, draw, ("default", "longrope"))}
        return fields | {"original_max_position_embeddings": draw.choice([32, CONTEXT])}
    kinds = (
        ("default", "yarn")
        if family in LATENT
        else ("default", "default", "linear", "dynamic", "yarn", "llama3")
    )
    return {"rope_parameters": _rope(size, part, draw, kinds)}


def _rope(
    size: int,
    part: float | None,
    draw: random.Random,
    kinds: tuple[str, ...] = ("default", "linear", "yarn", "llama3"),
) -> Fields:
    kind = draw.choice(kinds)
    rope: Fields = {"rope_type": kind, "rope_theta": draw.choice([100.0, 10000.0, 500000.0])}
    if part is not None:
        rope["partial_rotary_factor"] = part
    if kind == "longrope":
        count = int(size * (part or 1.0)) // 2
        rope["short_factor"] = [1 + draw.random() for _ in range(count)]
        rope["long_factor"] = [1 + 3 * draw.random() for _ in range(count)]
        return rope
    if kind != "default":
        rope["factor"] = draw.choice([1.5, 4.0, 8.0])
    if kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = draw.choice([24, 64])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
    if kind == "yarn" and draw.random() < 0.5:
        rope |= {"beta_fast": 16.0, "truncate": False}
    return rope


def _experts(family: str, num_layers: int, draw: random.Random) -> Fields:
    count = draw.choice([1, 2, 3, 5, 7, 8, 12])
    chosen = draw.choice([1, count, draw.randint(1, count)])
    fields: Fields = {}
    if "moe_intermediate_size" in FAMILIES[family][1]:
        fields["moe_intermediate_size"] = draw.randint(5, 70)
    if COUNT_OF_EXPERTS[family] == "n_routed_experts":
        groups = draw.choice([1, 1, 2, 3])
        each = draw.randint(2, 4)
        best = draw.randint(1, groups)
        count, chosen = groups * each, draw.randint(1, best * each)
        fields |= {"n_group": groups, "topk_group": best, "n_shared_experts": draw.randint(1, 2)}
        if family != "deepseek_v2":
            fields["norm_topk_prob"] = draw.random() < 0.5
        if family != "glm4_moe_lite":
            fields["first_k_dense_replace"] = draw.randint(0, num_layers)
    if family in ("qwen2_moe", "qwen3_next", "qwen3_5_moe"):
        fields["shared_expert_intermediate_size"] = draw.randint(5, 70)
    if family in ("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe"):
        fields["norm_topk_prob"] = draw.random() < 0.5
    if family == "granite_hybrid":
        count = draw.choice([0, count, count])
    if family in ("qwen2_moe", "qwen3_moe", "qwen3_next"):
        fields["decoder_sparse_step"] = draw.choice([1, 1, 2])
        fields["mlp_only_layers"] = draw.choice([[], [0]])
        count = draw.choice([0, count, count, count])
    if family == "gpt_oss":
        fields["swiglu_limit"] = draw.choice([0.4, 7.0])
    return fields | {COUNT_OF_EXPERTS[family]: count, "num_experts_per_tok": chosen}


def _delta(num_layers: int, draw: random.Random) -> Fields:
    kinds = [
        draw.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(num_layers)
    ]
    kinds[draw.randrange(num_layers)] = "full_attention"
    key_heads = draw.randint(1, 3)
    return {
        "layer_types": kinds,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw.randint(1, 3),
        "linear_key_head_dim": draw.randint(3, 40),
        "linear_value_head_dim": draw.randint(3, 40),
        "linear_conv_kernel_dim": draw.randint(2, 7),
    }


def _mamba(family: str, num_layers: int, width: int, draw: random.Random) -> Fields:
    """width: of all heads together."""
    heads = draw.choice([count for count in range(1, 9) if width % count == 0])
    attends = sorted({draw.randrange(num_layers), draw.randrange(num_layers)})
    fields: Fields = {
        "mamba_n_heads": heads,
        "mamba_d_head": width // heads,
        "mamba_n_groups": draw.choice([count for count in range(1, heads + 1) if heads % count == 0]),
        "mamba_d_state": draw.randint(3, 40),
        "mamba_d_conv": draw.randint(2, 7),
        "mamba_conv_bias": draw.random() < 0.7,
        "mamba_proj_bias": draw.random() < 0.3,
    }
    if family == "falcon_h1":
        return fields | {"mamba_proj_bias": False} | _multipliers(draw)
    if family == "bamba":
        return fields | {"attn_layer_indices": attends, "mlp_bias": draw.random() < 0.3}
    kinds = ["full_attention" if layer in attends else "linear_attention" for layer in range(num_layers)]
    return fields | {
        "layer_types": kinds,
        "position_embedding_type": draw.choice(["rope", None]),
        "shared_intermediate_size": draw.randint(9, 200),
    }


def _multipliers(draw: random.Random) -> Fields:
    """Of Falcon-H1, and the forms of its layers."""
    return {
        **{name: draw.uniform(0.3, 2.0) for name, value in MULTIPLIERS.items() if isinstance(value, float)},
        "mlp_multipliers": draw.choice([None, [draw.uniform(0.3, 2.0) for _ in range(2)]]),
        "ssm_multipliers": draw.choice([None, [draw.uniform(0.3, 2.0) for _ in range(5)]]),
        "mamba_d_ssm": None,
        "mamba_rms_norm": draw.random() < 0.5,
        "mamba_norm_before_gate": False,
    }


def _chunks(fields: Fields, draw: random.Random) -> Fields:
    """Of Llama 4, whose norms of queries and keys take no scaled rotation."""
    num_layers = fields["num_hidden_layers"]
    kinds = ["chunked_attention", "full_attention"]
    return {
        "attention_chunk_size": draw.choice([2, 3, 7, 16, 33, 64]),
        "layer_types": draw.choice([None, [draw.choice(kinds) for _ in range(num_layers)]]),
        "no_rope_layers": [draw.randint(0, 1) for _ in range(num_layers - 1)] + [1],
        "attn_temperature_tuning": draw.random() < 0.8,
        "floor_scale": draw.choice([1, 5, 16]),
        "attn_scale": draw.choice([0.1, 0.7]),
        "use_qk_norm": fields["rope_parameters"]["rope_type"] != "yarn" and draw.random() < 0.7,
        "interleave_moe_layer_step": draw.choice([1, 1, 2]),
        "intermediate_size_mlp": draw.randint(9, 200),
        "attention_bias": draw.random() < 0.3,
    }


def _gemma4(fields: Fields, draw: random.Random) -> Fields:
    kinds, num_layers = ["sliding_attention", "full_attention"], draw.randint(2, 5)
    heads, size = fields["num_attention_heads"], fields["head_dim"]
    shared = draw.choice([0, draw.randint(0, num_layers - 2)])
    types = [*kinds, *(draw.choice(kinds) for _ in range(num_layers))][:num_layers]
    full = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": draw.choice([0.25, 1.0])}
    # transformers cannot compute shared keys without vectors per layer.
    width, same = draw.choice([12 if shared else 0, draw.randint(1, 40)]), draw.random() < 0.5
    experts = {"num_experts": 5, "top_k_experts": draw.randint(1, 5), "moe_intermediate_size": 24}
    return {
        "num_hidden_layers": num_layers,
        "layer_types": [*types[:-1], "full_attention"],
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": draw.random() < 0.5,
        "sliding_window": draw.choice([2, 3, 7, 16, 33]),
        "global_head_dim": draw.choice([size, 2 * size, 24]),
        "attention_k_eq_v": same,
        "num_global_key_value_heads": draw.choice([None, 1, heads]) if same else None,
        "rope_parameters": {kinds[0]: {"rope_type": "default", "rope_theta": 100.0}, kinds[1]: full},
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": fields["vocab_size"] + draw.choice([0, 9]),
        "final_logit_softcapping": draw.choice([None, 5.0]),
        "attention_bias": draw.random() < 0.3,
        "tie_word_embeddings": draw.random() < 0.5,
    } | (experts | {"enable_moe_block": True} if draw.random() < 0.4 else {})


def _windows(family: str, num_layers: int, draw: random.Random) -> Fields:
    fields: Fields = {"sliding_window": draw.choice([2, 3, 7, 16, 17, 33])}
    if family in SWITCHED:
        fields["use_sliding_window"] = draw.random() < 0.7
        if family in ("qwen2", "qwen3"):
            fields["max_window_layers"] = draw.randint(0, num_layers)
    elif family == "dots1":
        fields["max_window_layers"] = draw.randint(0, num_layers)
    elif family in ("mistral", "phi3", "starcoder2", "mixtral") and draw.random() < 0.4:
        fields["sliding_window"] = None
    if family in KINDS_OF_LAYERS:
        kinds = ["sliding_attention", "full_attention"]
        fields["layer_types"] = [draw.choice(kinds) for _ in range(num_layers)]
    if family == "smollm3":
        fields["no_rope_layers"] = [draw.randint(0, 1) for _ in range(num_layers)]
    return fields


ALL = tuple(FAMILIES)
