"""Gemma (text): norms around both parts with weights stored as their distance from 1, scaled
embeddings, and windows that alternate with full attention.

Gemma 1 has norms before both parts, and no windows. Gemma 2 caps scores and logits; Gemma 3 norms the heads
of queries and keys in place of that, and rotates by other angles in the layers with a window.

Gemma 4 has heads of two sizes, layers that share keys and values, a vector per token for each layer, and
experts beside the feed-forward part. Of checkpoints that see images or hear, the text is computed.
"""

from dataclasses import replace
from typing import Any

from pagewire.checkpoints.files import BIDIRECTIONAL
from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    NormPlace,
    Spelling,
    every,
    read_biases,
    read_decoder,
    read_kinds,
    read_sizes,
    read_window,
    windows_of,
)
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.gemma4 import Gemma4Config
from worker.config.hf_config import MOST, Fields
from worker.config.names import HEAD_NORMS, NAMES, around, beside_images, stacked_names
from worker.config.rope import RopeConfig, RopeDefaults, read_proportional, read_rope_object

_GLOBAL, _LOCAL = RopeDefaults(theta=1e6), RopeDefaults(theta=10_000.0)


def _spelling(max_position: int) -> Spelling:
    return Spelling(
        max_position=max_position,
        head_dim=256,
        activation="hidden_activation",
        default_activation="gelu_pytorch_tanh",
        tied=True,
    )


def _read_cap(fields: Fields, name: str, default: float | None) -> float | None:
    """Null means none."""
    if fields.has(name):
        return fields.number(name)
    return None if name in fields else default


def _read_gemma(
    fields: Fields, values: dict[str, Any], kinds: tuple[str, ...], caps: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Returns the fields that both have in common. caps: of scores and of logits, by default."""
    return values | {
        **read_biases(fields),
        "windows": windows_of(kinds, read_window(fields, 4096)),
        "norm_place": NormPlace.AROUND,
        "norm_offset": 1.0,
        "attention_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "embedding_scale": values["hidden_size"] ** 0.5,
        "rounds_embedding_scale": True,
        "score_cap": _read_cap(fields, "attn_logit_softcapping", caps[0]),
        "logit_cap": _read_cap(fields, "final_logit_softcapping", caps[1]),
    }


def _read_gemma1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    spelling = replace(_spelling(8192), activation="hidden_act")
    values = read_decoder(fields, common, spelling)
    if values["activation"] == "gelu":  # first files say so, and mean the form with tanh
        values["activation"] = "gelu_pytorch_tanh"
    return DecoderConfig(
        **values,
        **read_biases(fields),
        norm_offset=1.0,
        embedding_scale=values["hidden_size"] ** 0.5,
        rounds_embedding_scale=True,
    )


def _read_gemma2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _spelling(8192))
    kinds = read_kinds(fields, every(2, values["num_layers"]))
    return DecoderConfig(**_read_gemma(fields, values, kinds, (50.0, 30.0)))


def _read_gemma3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_sizes(fields, common, _spelling(131072))
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    kinds = read_kinds(fields, every(period, values["num_layers"]))
    values["ropes"] = tuple(map(_read_ropes(fields, values).__getitem__, kinds))
    values = _read_gemma(fields, values, kinds, (None, None)) | {"head_norms": HeadNormKind.PER_HEAD}
    if fields.boolean(BIDIRECTIONAL, False):  # the window is of both sides together
        halves = tuple(window and window // 2 + 1 for window in values["windows"])
        values |= {"windows": halves, "bidirectional": True}
    return DecoderConfig(**values)


def _read_ropes(fields: Fields, values: dict[str, Any]) -> dict[str, RopeConfig]:
    """Returns the rotary parameters by kind of layer. Older files have those of full attention alone, and the
    base of the others."""
    sizes = values["max_position"], values["head_dim"]
    if not fields.has("rope_parameters"):
        local = Fields({"rope_theta": fields.number("rope_local_base_freq", 10_000.0)}, "config.json")
        return {
            FULL: read_rope_object(fields.object("rope_scaling"), fields, *sizes, _GLOBAL),
            SLIDING: read_rope_object(local, local, *sizes, _LOCAL),
        }
    parameters = fields.object("rope_parameters")
    parameters.refuse_unknown((FULL, SLIDING))
    return {
        kind: read_rope_object(parameters.object(kind), Fields({}, "config.json"), *sizes, defaults)
        for kind, defaults in ((FULL, _GLOBAL), (SLIDING, _LOCAL))
    }


_NAMES = NAMES | around("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
_CAUSAL = {BIDIRECTIONAL: False}
GEMMA1 = DecoderFamily(read=_read_gemma1_config, names=NAMES, harmless=("hidden_activation",), only=_CAUSAL)
GEMMA2 = DecoderFamily(
    read=_read_gemma2_config, names=_NAMES, only={"hidden_act": "gelu_pytorch_tanh"} | _CAUSAL
)
GEMMA3 = DecoderFamily(
    read=_read_gemma3_config, names=_NAMES | HEAD_NORMS, only={"attn_logit_softcapping": None}
)


def _read_full_heads(
    fields: Fields, kinds: tuple[str, ...], others: tuple[int, int], same: bool
) -> tuple[int, int]:
    """Returns the KV heads and the head size of layers that see all tokens. Files have them by layer, or
    once. others: of layers with windows. same: keys are values. Raises StartupError."""
    name, (kv_heads, head_dim) = "per_layer_config", others
    if not fields.has(name):
        own = fields.integer("num_global_key_value_heads", kv_heads)
        return (own if same else kv_heads), fields.integer(
            "global_head_dim", 512, times=own if same else kv_heads
        )
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


def _read_gemma4_ropes(fields: Fields, max_position: int, sizes: dict[str, int]) -> dict[str, RopeConfig]:
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


def _read_pad(fields: Fields, layer_vocab: int) -> int:
    """Returns the token whose vectors layers have where no token stands. Raises StartupError."""
    pad = fields.integer("pad_token_id", 0, least=0, most=MOST)
    if pad >= layer_vocab:
        raise fields.wrong("pad_token_id", f"must be below vocab_size_per_layer_input ({layer_vocab})")
    return pad


def _read_gemma4_config(fields: Fields, common: dict[str, Any]) -> Gemma4Config:
    values = read_sizes(fields, common, _spelling(131072))
    num_layers, kv_heads = values["num_layers"], values["num_kv_heads"]
    kinds = (*read_kinds(fields, every(6, num_layers))[:-1], FULL)
    same = fields.boolean("attention_k_eq_v", False)
    full_kv_heads, full_head_dim = _read_full_heads(fields, kinds, (kv_heads, values["head_dim"]), same)
    if values["num_heads"] % full_kv_heads:
        raise fields.wrong("num_attention_heads", f"must be a multiple of {full_kv_heads} KV heads")
    heads = {FULL: full_head_dim, SLIDING: values["head_dim"]}
    ropes = _read_gemma4_ropes(fields, values["max_position"], heads)
    shared = fields.integer("num_kv_shared_layers", 0, least=0)
    if shared and not set(kinds) <= set(kinds[: max(0, num_layers - shared)]):
        raise fields.wrong("num_kv_shared_layers", "leaves no layer whose keys and values are shared")
    vocab, width = values["vocab_size"], fields.integer("hidden_size_per_layer_input", 256, least=0)
    layer_vocab, name = 0, "vocab_size_per_layer_input"
    if width and (layer_vocab := fields.integer(name, 262144)) < vocab:
        raise fields.wrong(name, f"must be at least vocab_size ({vocab})")
    fields.has(name)
    fields.has(BIDIRECTIONAL)
    if fields.value(BIDIRECTIONAL) not in (None, "vision"):  # of images alone
        raise fields.wrong(BIDIRECTIONAL, "only causal attention is supported")
    return Gemma4Config(
        **values
        | {"windows": windows_of(kinds, fields.integer("sliding_window", 512, most=MOST))}
        | {"ropes": tuple(ropes[kind] for kind in kinds)},
        **read_biases(fields),
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
        layer_vocab=layer_vocab,
        pad_token=_read_pad(fields, layer_vocab) if width else 0,
    )


_LAYER = "model.layers.{layer}"
_QUERY, _KEY = f"{_LAYER}.self_attn.q_proj", f"{_LAYER}.self_attn.k_proj"
_GEMMA4_NAMES = (
    _NAMES
    | HEAD_NORMS
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
    read=_read_gemma4_config, names=_GEMMA4_NAMES, unused=_UNUSED, only={"hidden_act": "gelu_pytorch_tanh"}
)
UNUSED_BESIDE_IMAGES = _UNUSED.replace(r"model\.layers", r"model\.language_model\.layers")
"""The same, in checkpoints that see images."""
GEMMA4_SEEING = replace(
    GEMMA4,
    names=beside_images(_GEMMA4_NAMES),
    unused=rf"model\.(?!language_model\.).*|{UNUSED_BESIDE_IMAGES}",
    nested=True,
)
