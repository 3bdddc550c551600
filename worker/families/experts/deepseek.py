"""DeepSeek-V2 and V3, GLM-4.5 to 4.7 and dots.llm1: the first layers without experts, shared experts.

V2 chooses experts by softmax, of the best groups where it has any; V3 (Kimi-K2 is one too), GLM and dots.llm1
by sigmoids with a correction. DeepSeek and GLM-4.7-Flash have latent attention. Youtu-LLM is V3 without
experts.
"""

import math
from dataclasses import replace
from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    LatentConfig,
    Spelling,
    read_biases,
    read_decoder,
    read_kinds,
    read_sizes,
    read_window,
    windows_of,
)
from worker.config.experts import ExpertsConfig, check_groups, read_grouped_routing, read_routing
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, LATENT, NAMES, STACKED, expert_names, shared_names
from worker.config.rope import RopeDefaults, read_rope, scaled_max_position

LATENT_EPS = 1e-6
"""Of the norms of latents: `rms_norm_eps` is for the residual stream alone."""


def read_latent_decoder(
    fields: Fields, common: dict[str, Any], spelling: Spelling, interleaved: bool
) -> dict[str, Any]:
    """Returns the fields of DecoderConfig of a decoder with latent attention in all layers. interleaved:
    whether neighbouring values are rotated as pairs. Raises StartupError."""
    heads = fields.integer("num_attention_heads")
    if fields.integer("num_key_value_heads", heads) != heads:
        raise fields.wrong("num_key_value_heads", f"a latent has keys of all heads ({heads})")
    latent = LatentConfig(
        rank=fields.integer("kv_lora_rank", 512),
        query_rank=_query_rank(fields),
        plain_dim=fields.integer("qk_nope_head_dim", 128, times=heads),
        rotary_dim=fields.integer("qk_rope_head_dim", 64, times=heads),
        value_dim=fields.integer("v_head_dim", 128, times=heads),
        norm_eps=LATENT_EPS,
    )
    for name, size in (
        ("head_dim", latent.rotary_dim),
        ("qk_head_dim", latent.plain_dim + latent.rotary_dim),
    ):
        fields.expect(name, size, f"{size} follows from qk_nope_head_dim and qk_rope_head_dim")
    values = read_sizes(fields, common, replace(spelling, head_dim=latent.rotary_dim))
    trained = values["max_position"]
    rope = read_rope(fields, trained, latent.rotary_dim, RopeDefaults(interleaved=interleaved))
    return values | {
        "latent": latent,
        "num_kv_heads": 1,
        "ropes": (rope,) * values["num_layers"],
        "max_position": scaled_max_position(rope, trained),
        "attention_scale": _attention_scale(fields, latent, rope.kind),
        "output_bias": fields.boolean("attention_bias", False),
    }


def _query_rank(fields: Fields) -> int | None:
    """Returns `q_lora_rank`: null means that queries are not compressed."""
    if "q_lora_rank" in fields and not fields.has("q_lora_rank"):
        return None
    return fields.integer("q_lora_rank", 1536)


def _attention_scale(fields: Fields, latent: LatentConfig, kind: str) -> float:
    """Returns the factor of scores, which grows with the square of a scaled context's `mscale_all_dim`."""
    scale: float = (latent.plain_dim + latent.rotary_dim) ** -0.5
    rope = fields.object("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if kind == "default" or not rope.has("mscale_all_dim"):
        return scale
    factor, growth = rope.number("factor"), rope.number("mscale_all_dim")
    mscale = 0.1 * growth * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * mscale * mscale


LayerExperts = tuple[ExpertsConfig | None, ...]
_DENSE, _SPARSE = "dense", "sparse"


def _read_deepseek_v2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_latent_decoder(fields, common, Spelling(max_position=2048), interleaved=True)
    method = fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.wrong("topk_method", "only greedy and group_limited_greedy are supported")
    grouped = method == "group_limited_greedy"
    routing = read_routing(
        fields,
        "n_routed_experts",
        "num_experts_per_tok",
        score=Score.SOFTMAX,
        groups=fields.integer("n_group") if grouped else 1,
        top_groups=fields.integer("topk_group") if grouped else 1,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    check_groups(fields, routing)
    size = fields.integer("moe_intermediate_size", 1407)
    shared = size * fields.integer("n_shared_experts", 2, least=0, times=size)
    experts = ExpertsConfig(routing=routing, intermediate_size=size, shared_size=shared)
    return DecoderConfig(**values, experts=_behind_dense(fields, values["num_layers"], 0, experts))


def _read_deepseek_v3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    interleaved = fields.boolean("rope_interleave", True)
    values = read_latent_decoder(fields, common, Spelling(max_position=4096), interleaved)
    experts = _corrected_experts(fields, 2048, groups=(8, 4), scale=2.5)
    return DecoderConfig(**values, experts=_behind_dense(fields, values["num_layers"], 3, experts))


def _read_glm4_moe_lite_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    interleaved = fields.boolean("rope_interleave", True)
    spelling = Spelling(max_position=202752, default_norm_eps=1e-5)
    values = read_latent_decoder(fields, common, spelling, interleaved)
    num_layers, experts = values["num_layers"], _corrected_experts(fields, 1536, scale=1.8)
    if not fields.has("mlp_layer_types"):
        return DecoderConfig(**values, experts=_behind_dense(fields, num_layers, 1, experts))
    kinds = fields.texts("mlp_layer_types")
    if len(kinds) != num_layers or not set(kinds) <= {_DENSE, _SPARSE}:
        raise fields.wrong("mlp_layer_types", f"must name {_DENSE} or {_SPARSE} once per hidden layer")
    of_layers = tuple(experts if kind == _SPARSE else None for kind in kinds)
    return DecoderConfig(**values, experts=of_layers)


def _behind_dense(fields: Fields, num_layers: int, default: int, experts: ExpertsConfig) -> LayerExperts:
    """Returns the experts of each layer: none in the first `first_k_dense_replace`."""
    dense = fields.integer("first_k_dense_replace", default, least=0)
    return tuple(None if layer < dense else experts for layer in range(num_layers))


def _corrected_experts(
    fields: Fields,
    size: int,
    shared: int = 1,
    normalized: bool = True,
    groups: tuple[int, int] = (1, 1),
    scale: float = 1.0,
) -> ExpertsConfig:
    """Reads experts of V3's form. Arguments: of files that do not say. Raises StartupError."""
    size = fields.integer("moe_intermediate_size", size)
    return ExpertsConfig(
        routing=read_grouped_routing(fields, normalized, groups, scale),
        intermediate_size=size,
        corrected=True,
        shared_size=size * fields.integer("n_shared_experts", shared, least=0, times=size),
    )


_SHARED = NAMES | LATENT | shared_names("mlp.shared_experts")
_ROUTED = expert_names("mlp", "gate", "gate_proj", "up_proj", "down_proj", "gate.e_score_correction_bias")
_CORRECTED = _SHARED | _ROUTED
_NO_ROUTER = "output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers", "num_mtp_layers"
_HARMLESS = (*_NO_ROUTER, "aux_loss_alpha", "seq_aux", "ep_size")
_SIGMOIDS = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_IN_EACH_LAYER = {"moe_layer_freq": 1}
DEEPSEEK_V2 = DecoderFamily(
    read=_read_deepseek_v2_config,
    names=_SHARED | EXPERTS,
    other_names=STACKED,
    harmless=(*_HARMLESS, "n_group", "topk_group"),
    only={"scoring_func": "softmax", "moe_layer_freq": 1, "norm_topk_prob": False, "mlp_bias": False},
)
DEEPSEEK_V3 = DecoderFamily(
    read=_read_deepseek_v3_config,
    names=_CORRECTED,
    other_names=STACKED,
    unused=r"model\.layers\.61\..*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight",
    harmless=_HARMLESS,
    only=_SIGMOIDS | _IN_EACH_LAYER,
)
"""Layer 61 of V3 predicts one token more, and is not computed."""
GLM4_MOE_LITE = DecoderFamily(
    read=_read_glm4_moe_lite_config,
    names=_CORRECTED,
    other_names=STACKED,
    unused=r"model\.layers\.47\..*|lm_head\.weight",
    harmless=_HARMLESS,
    only=_SIGMOIDS | _IN_EACH_LAYER | {"partial_rotary_factor": 1.0},
)


_SPELLING = Spelling(max_position=131072, tied=True)


def _read_youtu_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    interleaved = fields.boolean("rope_interleave", True)
    return DecoderConfig(**read_latent_decoder(fields, common, _SPELLING, interleaved))


YOUTU = DecoderFamily(
    read=_read_youtu_config,
    names=NAMES | LATENT,
    harmless=("embedding_initializer_range",),
    only={"mlp_bias": False},
)


def _read_glm4_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    rope = RopeDefaults(partial=0.5)
    values = read_decoder(fields, common, Spelling(max_position=131072, default_norm_eps=1e-5, rope=rope))
    normed = fields.boolean("use_qk_norm", False)
    return DecoderConfig(
        **values,
        qkv_bias=fields.boolean("attention_bias", False),
        head_norms=HeadNormKind.PER_HEAD if normed else HeadNormKind.NONE,
        experts=_behind_dense(fields, values["num_layers"], 1, _corrected_experts(fields, 1408)),
    )


def _read_dots1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, Spelling(max_position=2048))
    num_layers = values["num_layers"]
    window, first = read_window(fields, 4096), fields.integer("max_window_layers", 62, least=0)
    kinds = read_kinds(fields, tuple(SLIDING if layer >= first else FULL for layer in range(num_layers)))
    experts = _corrected_experts(fields, 1408, shared=0, normalized=False)
    return DecoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        **read_biases(fields),
        head_norms=HeadNormKind.PER_HEAD,
        experts=_behind_dense(fields, num_layers, 0, experts),
    )


_UNCOMPRESSED = NAMES | HEAD_NORMS | _ROUTED | shared_names("mlp.shared_experts")
GLM4_MOE = DecoderFamily(
    read=_read_glm4_moe_config,
    names=_UNCOMPRESSED,
    other_names=STACKED,
    unused=r"model\.layers\.(?:46|92)\..*|lm_head\.weight",  # the layer that predicts a token more
    harmless=_NO_ROUTER,
    only=_SIGMOIDS,
)
DOTS1 = DecoderFamily(
    read=_read_dots1_config, names=_UNCOMPRESSED, other_names=STACKED, harmless=_NO_ROUTER, only=_SIGMOIDS
)
