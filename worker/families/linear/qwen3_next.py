"""Qwen3-Next: gated delta nets, with gated attention in each fourth layer, and experts."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, HeadNormKind, Spelling, read_decoder
from worker.config.delta import read_deltas
from worker.config.experts import ExpertsConfig, has_experts, read_routing, sparse_layers
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED, shared_names
from worker.config.rope import RopeDefaults
from worker.families.experts.qwen_moe import UNUSED_GATE

OF_IMAGES = "mrope_section", "mrope_interleaved"
"""Rotary fields that count for images alone: text has the same position in all sections."""
SPELLING = Spelling(max_position=32768, head_dim=256, rope=RopeDefaults(partial=0.25, harmless=OF_IMAGES))
ONLY = {"hidden_act": "silu"}
HARMLESS = ("output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers")
MTP = r"mtp\..*"
"""Pattern of the weights of layers that predict further tokens (worker.speculation.models.mtp)."""
_LAYER = "model.layers.{layer}"


def delta_names(*projections: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of the layers' parts but for their feed-forward parts. projections: modules of a
    gated delta net."""
    part, path = f"{_LAYER}.linear_attn", "blocks.{layer}.attention"
    delta = {
        f"{path}.projections": tuple(f"{part}.{name}" for name in projections),
        f"{path}.convolution": (f"{part}.conv1d",),
        f"{path}.rates": (f"{part}.A_log", f"{part}.dt_bias"),
        f"{path}.norm": (f"{part}.norm",),
        f"{path}.delta_output": (f"{part}.out_proj",),
        f"{path}.gate": (f"{_LAYER}.self_attn.q_proj",),
    }
    return NAMES | HEAD_NORMS | delta


def read_hybrid(
    fields: Fields, common: dict[str, Any], grouped: bool, spelling: Spelling = SPELLING
) -> dict[str, Any]:
    """Returns the fields of DecoderConfig that all families of this form share. grouped: see DeltaConfig.
    Raises StartupError."""
    values = read_decoder(fields, common, spelling)
    deltas = read_deltas(fields, values["num_layers"], grouped)
    bias = fields.boolean("attention_bias", False)
    ropes = zip(deltas, values["ropes"], strict=True)
    return values | {
        "deltas": deltas,
        "ropes": tuple(rope if delta is None else None for delta, rope in ropes),
        "attention_gate": True,
        "norm_offset": 1.0,
        "head_norms": HeadNormKind.PER_HEAD,
        "qkv_bias": bias,
        "output_bias": bias,
    }


def read_experts(
    fields: Fields, num_layers: int, chosen: int, normalized: bool
) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer. chosen: for files that do not say. Raises StartupError."""
    shared_size = fields.integer("shared_expert_intermediate_size", 512, least=0)
    config = ExpertsConfig(
        routing=read_routing(fields, "num_experts", "num_experts_per_tok", chosen, normalized=normalized),
        intermediate_size=fields.integer("moe_intermediate_size", 512),
        shared_size=shared_size,
        shared_gate=shared_size > 0,
    )
    return tuple(config if sparse else None for sparse in sparse_layers(fields, num_layers))


def read_qwen3_next_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_hybrid(fields, common, grouped=True)
    if not has_experts(fields):
        return DecoderConfig(**values)
    normalized = fields.boolean("norm_topk_prob", True)
    return DecoderConfig(**values, experts=read_experts(fields, values["num_layers"], 10, normalized))


EXPERT_NAMES = (
    EXPERTS
    | shared_names("mlp.shared_expert")
    | {"blocks.{layer}.mlp.shared_gate": (f"{_LAYER}.mlp.shared_expert_gate",)}
)
QWEN3_NEXT = DecoderFamily(
    read=read_qwen3_next_config,
    names=delta_names("in_proj_qkvz", "in_proj_ba") | EXPERT_NAMES,
    other_names=STACKED,
    unused=rf"lm_head\.weight|{UNUSED_GATE}|{MTP}",
    harmless=HARMLESS,
    only=ONLY,
)
