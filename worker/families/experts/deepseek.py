"""DeepSeek-V2 and V3, and GLM-4.7-Flash: latent attention, the first layers without experts, shared experts.

V2 chooses experts by softmax, of the best groups where it has any; V3 (Kimi-K2 is one too) and GLM by
sigmoids with a correction. Youtu-LLM is V3 without experts.
"""

from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling
from worker.config.experts import ExpertsConfig, check_groups, read_grouped_routing, read_routing
from worker.config.hf_config import Fields
from worker.config.latent import read_latent_decoder
from worker.config.names import EXPERTS, LATENT, NAMES, STACKED, expert_names, shared_names

LayerExperts = tuple[ExpertsConfig | None, ...]
_DENSE, _SPARSE = "dense", "sparse"


def read_deepseek_v2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
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
    shared = size * fields.integer("n_shared_experts", 2, least=0)
    experts = ExpertsConfig(routing=routing, intermediate_size=size, shared_size=shared)
    return DecoderConfig(**values, experts=_behind_dense(fields, values["num_layers"], 0, experts))


def read_deepseek_v3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    interleaved = fields.boolean("rope_interleave", True)
    values = read_latent_decoder(fields, common, Spelling(max_position=4096), interleaved)
    experts = _corrected_experts(fields, 2048, (8, 4), 2.5)
    return DecoderConfig(**values, experts=_behind_dense(fields, values["num_layers"], 3, experts))


def read_glm4_moe_lite_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    interleaved = fields.boolean("rope_interleave", True)
    spelling = Spelling(max_position=202752, default_norm_eps=1e-5)
    values = read_latent_decoder(fields, common, spelling, interleaved)
    num_layers, experts = values["num_layers"], _corrected_experts(fields, 1536, (1, 1), 1.8)
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
    fields: Fields, default_size: int, groups: tuple[int, int], scale: float
) -> ExpertsConfig:
    """Reads experts of V3's form. default_size, groups, scale: for files that do not say."""
    size = fields.integer("moe_intermediate_size", default_size)
    return ExpertsConfig(
        routing=read_grouped_routing(fields, True, groups, scale),
        intermediate_size=size,
        corrected=True,
        shared_size=size * fields.integer("n_shared_experts", 1, least=0),
    )


_SHARED = NAMES | LATENT | shared_names("mlp.shared_experts")
_CORRECTED = _SHARED | expert_names(
    *("mlp", "gate", "gate_proj", "up_proj", "down_proj"), "gate.e_score_correction_bias"
)
_HARMLESS = (
    *("output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size"),
    *("num_nextn_predict_layers", "num_mtp_layers"),
)
_SIGMOIDS = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
DEEPSEEK_V2 = DecoderFamily(
    read=read_deepseek_v2_config,
    names=_SHARED | EXPERTS,
    other_names=STACKED,
    harmless=(*_HARMLESS, "n_group", "topk_group"),
    only={"scoring_func": "softmax", "moe_layer_freq": 1, "norm_topk_prob": False, "mlp_bias": False},
)
DEEPSEEK_V3 = DecoderFamily(
    read=read_deepseek_v3_config,
    names=_CORRECTED,
    other_names=STACKED,
    unused=r"model\.layers\.61\..*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight",
    harmless=_HARMLESS,
    only=_SIGMOIDS,
)
"""Layer 61 of V3 predicts one token more, and is not computed."""
GLM4_MOE_LITE = DecoderFamily(
    read=read_glm4_moe_lite_config,
    names=_CORRECTED,
    other_names=STACKED,
    unused=r"model\.layers\.47\..*|lm_head\.weight",
    harmless=_HARMLESS,
    only=_SIGMOIDS | {"partial_rotary_factor": 1.0},
)


_SPELLING = Spelling(max_position=131072, tied=True)


def read_youtu_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    interleaved = fields.boolean("rope_interleave", True)
    return DecoderConfig(**read_latent_decoder(fields, common, _SPELLING, interleaved))


YOUTU = DecoderFamily(
    read=read_youtu_config,
    names=NAMES | LATENT,
    harmless=("embedding_initializer_range",),
    only={"mlp_bias": False},
)
