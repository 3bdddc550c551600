"""Llama (RMS norms, rotary positions, grouped-query attention, gated feed-forward), and families that differ
from it in a few fields.

    Seed-OSS             biases on query, key and value
    ERNIE 4.5 (dense)    neighbouring pairs rotated, and one field for all biases
    Mistral, Ministral   a sliding window in all layers or in those that the file names
    SmolLM3              every fourth layer has no positions
    Phi-3, Phi-4         query, key and value, and gate and up, in one weight each; rotary for long contexts
    StableLM             layer norms, a quarter of each head rotated
    Starcoder 2          layer norms, biases, and a feed-forward part without a gate
    GLM-4                half of each head rotated in neighbouring pairs, and biases; that of 0414 has norms
                         around both parts
    Qwen2                biases on query, key and value; a window in the upper layers if asked
    Qwen3                norms of heads in their place

StableLM has both parts of a block side by side where the file says so; Phi rotates a part of each head where
it does.
"""

from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    NormKind,
    NormPlace,
    Spelling,
    read_biases,
    read_decoder,
    read_kinds,
    read_rotated_layers,
    read_used_window,
    read_window,
    windows_of,
)
from worker.config.hf_config import MOST, Fields
from worker.config.names import FUSED, HEAD_NORMS, NAMES, around
from worker.config.rope import RopeDefaults


def _read_llama_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **read_decoder(fields, common, Spelling(max_position=2048)),
        **read_biases(fields),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


LLAMA = DecoderFamily(read=_read_llama_config, names=NAMES)


def _read_seed_oss_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **read_decoder(fields, common, Spelling(max_position=524288, head_dim=128)),
        qkv_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


SEED_OSS = DecoderFamily(read=_read_seed_oss_config, names=NAMES)


_ERNIE_SPELLING = Spelling(
    max_position=131072,
    head_dim=128,
    default_norm_eps=1e-5,
    tied=True,
    rope=RopeDefaults(theta=500_000.0, interleaved=True),
)


def _read_ernie_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values, bias = read_decoder(fields, common, _ERNIE_SPELLING), fields.boolean("use_bias", False)
    return DecoderConfig(**values, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


ERNIE = DecoderFamily(read=_read_ernie_config, names=NAMES)


_MISTRAL_SPELLING = Spelling(max_position=131072)


def _read_mistral_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. A window that is left out is 4096; null means none. Raises StartupError."""
    values = read_decoder(fields, common, _MISTRAL_SPELLING)
    values["windows"] = (read_window(fields, 4096),) * values["num_layers"]
    return DecoderConfig(**values)


def _read_ministral_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """As _read_mistral_config(), where `layer_types` may leave layers without the window."""
    values = read_decoder(fields, common, _MISTRAL_SPELLING)
    window = read_window(fields, 4096)
    kinds = read_kinds(fields, (FULL if window is None else SLIDING,) * values["num_layers"])
    return DecoderConfig(**values | {"windows": windows_of(kinds, window)})


_NO_BIASES = {"attention_bias": False, "mlp_bias": False}
MISTRAL = DecoderFamily(read=_read_mistral_config, names=NAMES, only=_NO_BIASES)
MINISTRAL = DecoderFamily(read=_read_ministral_config, names=NAMES, only=_NO_BIASES)


_SMOLLM3_SPELLING = Spelling(max_position=32768, tied=True, rope=RopeDefaults(theta=2e6))


def _read_smollm3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _SMOLLM3_SPELLING)
    num_layers = values["num_layers"]
    rotates = read_rotated_layers(fields, num_layers, fields.has("no_rope_layers"))
    used = fields.boolean("use_sliding_window", False)
    window = fields.integer("sliding_window", most=MOST) if used and fields.has("sliding_window") else None
    kinds = read_kinds(fields, tuple(FULL if on else SLIDING for on in rotates))
    values["ropes"] = tuple(rope if on else None for rope, on in zip(values["ropes"], rotates, strict=True))
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        **read_biases(fields),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


SMOLLM3 = DecoderFamily(
    read=_read_smollm3_config, names=NAMES, harmless=("sliding_window", "max_window_layers")
)


_PHI3_ROPE = RopeDefaults(partial=1.0, original_max_position=4096)


def _read_phi3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    spelling = Spelling(max_position=4096, default_norm_eps=1e-5, rope=_PHI3_ROPE)
    values = read_decoder(fields, common, spelling)
    values["windows"] = (read_window(fields, None),) * values["num_layers"]
    return DecoderConfig(**values)


PHI3 = DecoderFamily(
    read=_read_phi3_config,
    names=NAMES | FUSED,
    harmless=("original_max_position_embeddings", "full_attn_mod", "interpolate_factor", "lm_head_bias"),
    only={"attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
)


_STABLELM_SPELLING = Spelling(
    max_position=4096,
    norm_eps="layer_norm_eps",
    default_norm_eps=1e-5,
    rope=RopeDefaults(partial=0.25),
)


def _read_stablelm_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    parallel = fields.boolean("use_parallel_residual", False)
    return DecoderConfig(
        **read_decoder(fields, common, _STABLELM_SPELLING),
        norm_kind=NormKind.LAYER,
        norm_place=NormPlace.PARALLEL if parallel else NormPlace.BEFORE,
        qkv_bias=fields.boolean("use_qkv_bias", False),
    )


STABLELM = DecoderFamily(read=_read_stablelm_config, names=NAMES, only={"qk_layernorm": False})


_STARCODER2_SPELLING = Spelling(
    max_position=4096,
    norm_eps="norm_epsilon",
    default_norm_eps=1e-5,
    default_activation="gelu_pytorch_tanh",
    tied=True,
)


def _read_starcoder2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _STARCODER2_SPELLING)
    bias = fields.boolean("use_bias", True)
    values["windows"] = (read_window(fields, None),) * values["num_layers"]
    return DecoderConfig(
        **values, gated=False, norm_kind=NormKind.LAYER, qkv_bias=bias, output_bias=bias, mlp_bias=bias
    )


STARCODER2 = DecoderFamily(
    read=_read_starcoder2_config,
    names=NAMES
    | {
        "blocks.{layer}.mlp.up": ("model.layers.{layer}.mlp.c_fc",),
        "blocks.{layer}.mlp.down": ("model.layers.{layer}.mlp.c_proj",),
    },
    harmless=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    only={"norm_type": "layer_norm", "mlp_type": "default"},
)


_GLM_SPELLING = Spelling(
    max_position=131072,
    head_dim=128,
    default_norm_eps=1.5625e-7,
    rope=RopeDefaults(partial=0.5, interleaved=True),
)


def _read_glm4_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _GLM_SPELLING)
    return DecoderConfig(
        **values, norm_place=NormPlace.AROUND, qkv_bias=fields.boolean("attention_bias", True)
    )


_GLM_NAMES = NAMES | {"blocks.{layer}.mlp.gate_up": FUSED["blocks.{layer}.mlp.gate_up"]}
GLM4 = DecoderFamily(
    read=_read_glm4_config,
    names=_GLM_NAMES | around("post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
)


def _read_glm_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _GLM_SPELLING)
    return DecoderConfig(**values, qkv_bias=fields.boolean("attention_bias", True))


GLM = DecoderFamily(read=_read_glm_config, names=_GLM_NAMES)


def read_qwen_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer: as `layer_types` says, or from layer `max_window_layers` on."""
    first = fields.integer("max_window_layers", 28, least=0)
    kinds = read_kinds(fields, tuple(SLIDING if layer >= first else FULL for layer in range(num_layers)))
    return windows_of(kinds, read_used_window(fields))


_QWEN_ROPE = RopeDefaults(allows_sections=True)


def _read_qwen2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=32768, rope=_QWEN_ROPE))
    values["windows"] = read_qwen_windows(fields, values["num_layers"])
    return DecoderConfig(**values, qkv_bias=True)


def _read_qwen3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=32768, head_dim=128, rope=_QWEN_ROPE))
    values["windows"] = read_qwen_windows(fields, values["num_layers"])
    return DecoderConfig(**values, **read_biases(fields), head_norms=HeadNormKind.PER_HEAD)


QWEN2 = DecoderFamily(
    read=_read_qwen2_config,
    names=NAMES,
    harmless=("attention_bias",),
    only={"use_mrope": False, "mlp_bias": False},
)
QWEN3 = DecoderFamily(read=_read_qwen3_config, names=NAMES | HEAD_NORMS, only={"mlp_bias": False})
