"""Qwen3-Next: gated delta nets, with gated attention in each fourth layer, and experts.

Qwen3.5, dense and with experts, is the same with other projections of its gated delta nets. Of checkpoints
that see images the text is computed alone.
"""

from dataclasses import replace
from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, HeadNormKind, Spelling, read_decoder
from worker.config.experts import ExpertsConfig, has_experts, read_routing, sparse_layers
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED, beside_images, shared_names
from worker.config.rope import RopeDefaults
from worker.config.states import read_deltas
from worker.families.experts.qwen_moe import UNUSED_GATE

_OF_IMAGES = "mrope_section", "mrope_interleaved"
"""Rotary fields that count for images alone: text has the same position in all sections."""
_SPELLING = Spelling(max_position=32768, head_dim=256, rope=RopeDefaults(partial=0.25, harmless=_OF_IMAGES))
_ONLY = {"hidden_act": "silu"}
_HARMLESS = ("output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers")
_MTP = r"mtp\..*"
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
    fields: Fields, common: dict[str, Any], grouped: bool, spelling: Spelling = _SPELLING
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


_EXPERT_NAMES = (
    EXPERTS
    | shared_names("mlp.shared_expert")
    | {"blocks.{layer}.mlp.shared_gate": (f"{_LAYER}.mlp.shared_expert_gate",)}
)
QWEN3_NEXT = DecoderFamily(
    read=read_qwen3_next_config,
    names=delta_names("in_proj_qkvz", "in_proj_ba") | _EXPERT_NAMES,
    other_names=STACKED,
    unused=rf"lm_head\.weight|{UNUSED_GATE}|{_MTP}",
    harmless=_HARMLESS,
    only=_ONLY,
)


def read_qwen3_5_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    return DecoderConfig(**read_hybrid(fields, common, grouped=False))


def read_qwen3_5_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    spelling = replace(_SPELLING, intermediate_size="moe_intermediate_size")
    values = read_hybrid(fields, common, grouped=False, spelling=spelling)
    experts = read_experts(fields, values["num_layers"], 8, normalized=True)
    return DecoderConfig(**values, experts=experts)


_NAMES_3_5 = delta_names("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_UNUSED_3_5 = rf"lm_head\.weight|model\.visual\..*|{UNUSED_GATE}|{_MTP}"
_ONLY_3_5 = _ONLY | {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
_HARMLESS_3_5 = (*_HARMLESS, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
QWEN3_5 = DecoderFamily(
    read=read_qwen3_5_config,
    names=_NAMES_3_5,
    unused=_UNUSED_3_5,
    harmless=(*_HARMLESS_3_5, "mlp_only_layers"),  # no layer has experts
    only=_ONLY_3_5,
)
QWEN3_5_MOE = DecoderFamily(
    read=read_qwen3_5_moe_config,
    names=_NAMES_3_5 | _EXPERT_NAMES,
    other_names=STACKED,
    unused=_UNUSED_3_5,
    harmless=(*_HARMLESS_3_5, "intermediate_size"),  # of no layer
    only=_ONLY_3_5,
)


def _beside_images(family: DecoderFamily) -> DecoderFamily:
    """Returns the family of checkpoints in which the decoder is a part, beside what sees images."""
    names, others = beside_images(family.names), beside_images(family.other_names)
    return replace(family, names=names, other_names=others, nested=True)


QWEN3_5_SEEING, QWEN3_5_MOE_SEEING = _beside_images(QWEN3_5), _beside_images(QWEN3_5_MOE)
