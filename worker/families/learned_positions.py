"""Decoders with layer norms, learned positions and a feed-forward part without a gate.

GPT-2    GELU; checkpoints store weights as [in, out], with query, key and value fused
OPT      ReLU; the 350m model norms after each part instead of before, and has an embedding that is
         narrower than the hidden state (worker.models.opt)
"""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, NormKind, NormPlace
from worker.config.hf_config import MAX_LAYERS, Fields, read_activation
from worker.config.opt import OPTConfig


def read_plain_sizes(
    fields: Fields, common: dict[str, Any], hidden: str, heads: str, layers: str
) -> dict[str, Any]:
    """Returns the fields of DecoderConfig that all models with learned positions and no gate have, as many
    KV heads as heads. hidden, heads, layers: what config.json calls the sizes. Raises StartupError."""
    hidden_size, num_heads = fields.integer(hidden), fields.integer(heads)
    num_layers = fields.integer(layers, most=MAX_LAYERS)
    if hidden_size % num_heads:
        raise fields.wrong(heads, f"must divide {hidden} ({hidden_size})")
    return {
        **common,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "num_layers": num_layers,
        "windows": (None,) * num_layers,
        "tied": fields.boolean("tie_word_embeddings", True),
        "ropes": (None,) * num_layers,
        "learned_positions": True,
        "gated": False,
    }


def _read_gpt2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    sizes = read_plain_sizes(fields, common, "n_embd", "n_head", "n_layer")
    if fields.boolean("add_cross_attention", False):
        raise fields.wrong("add_cross_attention", "cross-attention is not supported")
    return DecoderConfig(
        **sizes,
        max_position=fields.integer("n_positions", 1024),
        intermediate_size=fields.integer("n_inner", 4 * sizes["hidden_size"]),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=read_activation(fields, "activation_function", "gelu_new"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_kind=NormKind.LAYER,
        attention_scale=None if fields.boolean("scale_attn_weights", True) else 1.0,
        scale_by_inverse_layer=fields.boolean("scale_attn_by_inverse_layer_idx", False),
        transposed=True,
    )


_GPT2_LAYER = "transformer.h.{layer}"
GPT2 = DecoderFamily(
    read=_read_gpt2_config,
    names={
        "embedding": ("transformer.wte",),
        "positions": ("transformer.wpe",),
        "blocks.{layer}.attention_norm": (f"{_GPT2_LAYER}.ln_1",),
        "blocks.{layer}.attention.qkv": (f"{_GPT2_LAYER}.attn.c_attn",),
        "blocks.{layer}.attention.output": (f"{_GPT2_LAYER}.attn.c_proj",),
        "blocks.{layer}.mlp_norm": (f"{_GPT2_LAYER}.ln_2",),
        "blocks.{layer}.mlp.up": (f"{_GPT2_LAYER}.mlp.c_fc",),
        "blocks.{layer}.mlp.down": (f"{_GPT2_LAYER}.mlp.c_proj",),
        "norm": ("transformer.ln_f",),
        "head": ("lm_head",),
    },
    # Causal masks that some checkpoints store, and the head's weight that some tied ones hold all the same.
    unused=r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight",
    # Heads of classifiers, a former name of n_positions, and how a device multiplies.
    harmless=(
        *("n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ),
    optional_prefix="transformer.",
)


def _read_opt_config(fields: Fields, common: dict[str, Any]) -> OPTConfig:
    sizes = read_plain_sizes(fields, common, "hidden_size", "num_attention_heads", "num_hidden_layers")
    norm_first, bias = fields.boolean("do_layer_norm_before", True), fields.boolean("enable_bias", True)
    affine = fields.boolean("layer_norm_elementwise_affine", True)
    return OPTConfig(
        **sizes,
        max_position=fields.integer("max_position_embeddings", 2048),
        intermediate_size=fields.integer("ffn_dim"),
        embedding_size=fields.integer("word_embed_proj_dim", sizes["hidden_size"]),
        norm_eps=1e-5,
        activation=read_activation(fields, "activation_function", "relu"),
        position_offset=2,  # the first two rows of the table stand for padding
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm_place=NormPlace.BEFORE if norm_first else NormPlace.LAST,
        norm_kind=NormKind.LAYER if affine else NormKind.LAYER_WITHOUT_PARAMETERS,
        last_norm=not fields.boolean("_remove_final_layer_norm", False),
    )


_OPT, _OPT_LAYER = "model.decoder", "model.decoder.layers.{layer}"
OPT = DecoderFamily(
    read=_read_opt_config,
    names={
        "embedding": (f"{_OPT}.embed_tokens",),
        "project_in": (f"{_OPT}.project_in",),
        "positions": (f"{_OPT}.embed_positions",),
        "blocks.{layer}.attention_norm": (f"{_OPT_LAYER}.self_attn_layer_norm",),
        "blocks.{layer}.attention.qkv": tuple(f"{_OPT_LAYER}.self_attn.{part}_proj" for part in "qkv"),
        "blocks.{layer}.attention.output": (f"{_OPT_LAYER}.self_attn.out_proj",),
        "blocks.{layer}.mlp_norm": (f"{_OPT_LAYER}.final_layer_norm",),
        "blocks.{layer}.mlp.up": (f"{_OPT_LAYER}.fc1",),
        "blocks.{layer}.mlp.down": (f"{_OPT_LAYER}.fc2",),
        "norm": (f"{_OPT}.final_layer_norm",),
        "project_out": (f"{_OPT}.project_out",),
        "head": ("lm_head",),
    },
    unused=r"lm_head\.weight",
    harmless=("init_std", "layerdrop"),  # they matter in training alone
    optional_prefix="model.",
)
