"""Gemma 4: norms around both parts, heads of two sizes, layers that share keys and values, a vector per token
for each layer, experts beside the feed-forward part. Of checkpoints that see images or hear, the text is
computed."""

from dataclasses import replace
from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderFamily,
    HeadNormKind,
    NormPlace,
    Spelling,
    every,
    read_kinds,
    read_sizes,
    windows_of,
)
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.gemma4 import Gemma4Config
from worker.config.hf_config import Fields
from worker.config.names import HEAD_NORMS, NAMES, around, beside_images, stacked_names
from worker.config.rope import RopeConfig, RopeDefaults, read_proportional, read_rope_object

_SPELLING = Spelling(
    max_position=131072,
    head_dim=256,
    activation="hidden_activation",
    default_activation="gelu_pytorch_tanh",
    tied=True,
)


def _read_full_heads(
    fields: Fields, kinds: tuple[str, ...], others: tuple[int, int], same: bool
) -> tuple[int, int]:
    """Returns the KV heads and the head size of layers that see all tokens. Files have them by layer, or
    once. others: of layers with windows. same: keys are values. Raises StartupError."""
    name, (kv_heads, head_dim) = "per_layer_config", others
    if not fields.has(name):
        own = fields.integer("num_global_key_value_heads", kv_heads)
        return (own if same else kv_heads), fields.integer("global_head_dim", 512)
    layers = fields.object(name)
    found: dict[str, set[tuple[int, int]]] = {FULL: set(), SLIDING: {others}}
    for layer, kind in enumerate(kinds):
        sizes = layers.object(str(layer))  # what is not said is as in other layers
        sizes.refuse_unknown(("head_dim", "num_key_value_heads"))
        stated = sizes.integer("num_key_value_heads", kv_heads), sizes.integer("head_dim", head_dim)
        found[kind].add(stated)
    layers.refuse_unknown([str(layer) for layer in range(len(kinds))])
    if found[SLIDING] != {others} or len(found[FULL]) > 1:
        raise fields.wrong(name, f"must have the same sizes for each layer of {FULL}, and none for others")
    return found[FULL].pop()


def _read_ropes(fields: Fields, max_position: int, sizes: dict[str, int]) -> dict[str, RopeConfig]:
    """Returns the rotary parameters by kind of layer. sizes: of heads. Raises StartupError."""
    parameters, none = fields.object("rope_parameters"), Fields({}, "config.json")
    parameters.refuse_unknown((FULL, SLIDING))
    full, local = parameters.object(FULL), parameters.object(SLIDING)
    plain = RopeDefaults(theta=10_000.0)
    if full.text("rope_type", "proportional") == "proportional":
        whole = read_proportional(full, sizes[FULL], theta=1e6, partial=0.25)
    else:
        whole = read_rope_object(full, none, max_position, sizes[FULL], RopeDefaults(theta=1e6))
    return {FULL: whole, SLIDING: read_rope_object(local, none, max_position, sizes[SLIDING], plain)}


def _read_experts(fields: Fields, num_layers: int) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer: all have them, or none. Raises StartupError."""
    if not fields.boolean("enable_moe_block", False):
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            fields.has(name)
        return ()
    routing = read_routing(fields, "num_experts", "top_k_experts", normalized=True)
    size = fields.integer("moe_intermediate_size")
    return (ExpertsConfig(routing=routing, intermediate_size=size),) * num_layers


def read_gemma4_config(fields: Fields, common: dict[str, Any]) -> Gemma4Config:
    """Reads config.json. Raises StartupError."""
    values = read_sizes(fields, common, _SPELLING)
    num_layers, kv_heads = values["num_layers"], values["num_kv_heads"]
    kinds = (*read_kinds(fields, every(6, num_layers))[:-1], FULL)
    same = fields.boolean("attention_k_eq_v", False)
    full_kv_heads, full_head_dim = _read_full_heads(fields, kinds, (kv_heads, values["head_dim"]), same)
    if values["num_heads"] % full_kv_heads:
        raise fields.wrong("num_attention_heads", f"must be a multiple of {full_kv_heads} KV heads")
    heads = {FULL: full_head_dim, SLIDING: values["head_dim"]}
    ropes = _read_ropes(fields, values["max_position"], heads)
    shared = fields.integer("num_kv_shared_layers", 0, least=0)
    if shared and not set(kinds) <= set(kinds[: max(0, num_layers - shared)]):
        raise fields.wrong("num_kv_shared_layers", "leaves no layer whose keys and values are shared")
    vocab, width = values["vocab_size"], fields.integer("hidden_size_per_layer_input", 256, least=0)
    layer_vocab = fields.integer("vocab_size_per_layer_input", 262144)
    if width and layer_vocab < vocab:
        raise fields.wrong("vocab_size_per_layer_input", f"must be at least vocab_size ({vocab})")
    bias = fields.boolean("attention_bias", False)
    fields.has("use_bidirectional_attention")
    if fields.value("use_bidirectional_attention") not in (None, "vision"):  # of images alone
        raise fields.wrong("use_bidirectional_attention", "only causal attention is supported")
    return Gemma4Config(
        **values
        | {"windows": windows_of(kinds, fields.integer("sliding_window", 512))}
        | {"ropes": tuple(ropes[kind] for kind in kinds)},
        qkv_bias=bias,
        output_bias=bias,
        norm_place=NormPlace.AROUND,
        head_norms=HeadNormKind.PER_HEAD,
        attention_scale=1.0,
        embedding_scale=values["hidden_size"] ** 0.5,
        rounds_embedding_scale=True,
        logit_cap=fields.number("final_logit_softcapping") if fields.has("final_logit_softcapping") else None,
        experts=_read_experts(fields, num_layers),
        full_head_dim=full_head_dim,
        full_kv_heads=full_kv_heads,
        keys_are_values=same,
        num_shared=shared,
        wide_shared=fields.boolean("use_double_wide_mlp", False),
        layer_width=width,
        layer_vocab=layer_vocab if width else 0,
    )


_LAYER = "model.layers.{layer}"
_QUERY, _KEY = f"{_LAYER}.self_attn.q_proj", f"{_LAYER}.self_attn.k_proj"
_NAMES = (
    NAMES
    | HEAD_NORMS
    | around("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
    | {
        "blocks.{layer}.attention.query_key": (_QUERY, _KEY),
        "blocks.{layer}.attention.query": (_QUERY,),
        "blocks.{layer}.factor": (f"{_LAYER}.layer_scalar",),
        "per_layer.table": ("model.embed_tokens_per_layer.weight",),
        "per_layer.projection": ("model.per_layer_model_projection",),
        "per_layer.norm": ("model.per_layer_projection_norm",),
        "blocks.{layer}.per_layer.gate": (f"{_LAYER}.per_layer_input_gate",),
        "blocks.{layer}.per_layer.projection": (f"{_LAYER}.per_layer_projection",),
        "blocks.{layer}.per_layer.norm": (f"{_LAYER}.post_per_layer_input_norm",),
    }
    | {
        path.replace(".mlp.", ".mixture.experts."): names
        for path, names in stacked_names("experts.gate_up_proj", "experts.down_proj").items()
    }
    | {
        "blocks.{layer}.mixture.mlp_norm": (f"{_LAYER}.post_feedforward_layernorm_1",),
        "blocks.{layer}.mixture.input_norm": (f"{_LAYER}.pre_feedforward_layernorm_2",),
        "blocks.{layer}.mixture.output_norm": (f"{_LAYER}.post_feedforward_layernorm_2",),
        "blocks.{layer}.mixture.experts.router": (f"{_LAYER}.router.proj",),
        "blocks.{layer}.mixture.experts.router_scale": (f"{_LAYER}.router.scale",),
        "blocks.{layer}.mixture.experts.expert_scale": (f"{_LAYER}.router.per_expert_scale",),
    }
)
_UNUSED = r"model\.layers\.\d+\.self_attn\.(?:[kv]_proj|k_norm)\.(?:weight|bias)|lm_head\.weight"
"""Layers that share keys and values may have those projections all the same."""
GEMMA4 = DecoderFamily(
    read=read_gemma4_config, names=_NAMES, unused=_UNUSED, only={"hidden_act": "gelu_pytorch_tanh"}
)
GEMMA4_SEEING = replace(
    GEMMA4,
    names=beside_images(_NAMES),
    unused=r"model\.(?!language_model\.).*|lm_head\.weight|"
    + _UNUSED.replace(r"model\.layers", r"model\.language_model\.layers"),
    nested=True,
)
