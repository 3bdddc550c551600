"""The names that Llama's checkpoints give to the parts of worker.models.transformer; other families change
some of them. Needs no torch."""

_LAYER, _ATTENTION, _MLP = (
    "model.layers.{layer}",
    "model.layers.{layer}.self_attn",
    "model.layers.{layer}.mlp",
)

NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "blocks.{layer}.attention_norm": (f"{_LAYER}.input_layernorm",),
    "blocks.{layer}.attention.qkv": (
        f"{_ATTENTION}.q_proj",
        f"{_ATTENTION}.k_proj",
        f"{_ATTENTION}.v_proj",
    ),
    "blocks.{layer}.attention.output": (f"{_ATTENTION}.o_proj",),
    "blocks.{layer}.mlp_norm": (f"{_LAYER}.post_attention_layernorm",),
    "blocks.{layer}.mlp.gate_up": (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"),
    "blocks.{layer}.mlp.down": (f"{_MLP}.down_proj",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
}

HEAD_NORMS: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.query_norm": (f"{_ATTENTION}.q_norm",),
    "blocks.{layer}.attention.key_norm": (f"{_ATTENTION}.k_norm",),
}

LATENT: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.queries": (f"{_ATTENTION}.q_proj",),
    "blocks.{layer}.attention.queries.down": (f"{_ATTENTION}.q_a_proj",),
    "blocks.{layer}.attention.queries.norm": (f"{_ATTENTION}.q_a_layernorm",),
    "blocks.{layer}.attention.queries.up": (f"{_ATTENTION}.q_b_proj",),
    "blocks.{layer}.attention.latent": (f"{_ATTENTION}.kv_a_proj_with_mqa",),
    "blocks.{layer}.attention.latent_norm": (f"{_ATTENTION}.kv_a_layernorm",),
    "blocks.{layer}.attention.key_up.{expert}": (f"{_ATTENTION}.kv_b_proj",),
    "blocks.{layer}.attention.value_up.{expert}": (f"{_ATTENTION}.kv_b_proj",),
}
"""Latent attention, in place of query, key and value."""

FUSED: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.qkv": (f"{_ATTENTION}.qkv_proj",),
    "blocks.{layer}.mlp.gate_up": (f"{_MLP}.gate_up_proj",),
}
"""Query, key and value in one weight, and gate and up in another."""


def around(before_mlp: str, after_attention: str, after_mlp: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of the norms of NormPlace.AROUND that differ between families. Arguments: modules of
    a layer."""
    return {
        "blocks.{layer}.mlp_norm": (f"{_LAYER}.{before_mlp}",),
        "blocks.{layer}.attention_output_norm": (f"{_LAYER}.{after_attention}",),
        "blocks.{layer}.mlp_output_norm": (f"{_LAYER}.{after_mlp}",),
    }


AFTER: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention_output_norm": (f"{_LAYER}.post_attention_layernorm",),
    "blocks.{layer}.mlp_output_norm": (f"{_LAYER}.post_feedforward_layernorm",),
}
"""The norms of NormPlace.AFTER."""
