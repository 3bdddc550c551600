"""Families in which most layers keep one state per sequence in place of keys and values.

    Bamba        Llama with Mamba-2 layers in place of most attention, which rotates half of each head
    Falcon-H1    attention and a Mamba-2 layer side by side in each layer, and factors of everything
    Qwen3-Next   gated delta nets, with gated attention in each fourth layer, and experts
    Qwen3.5      dense and with experts: the same with other projections of gated delta nets; of checkpoints
                 that see images the text is computed alone

Falcon's factors of what goes into a product come out of it. So that of attention's input becomes one of its
scores, with that of keys, and one of its output. What both parts add to the residual stream is scan * ssm_out
+ attention * attention_out: the norm behind them takes the first factor, and the second one is relative to
it.
"""

from dataclasses import replace
from typing import Any

from worker.config.decoder import (
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    MambaConfig,
    Spelling,
    read_biases,
    read_decoder,
)
from worker.config.experts import has_experts
from worker.config.hf_config import Fields
from worker.config.names import EXPERTS, HEAD_NORMS, NAMES, STACKED, beside_images
from worker.config.rope import RopeDefaults
from worker.config.states import MAMBA_HARMLESS, MAMBA_NAMES, read_deltas, read_mamba, read_mambas
from worker.families.experts.qwen_moe import GATED_SHARED, UNUSED_GATE, read_sparse

_LAYER = "model.layers.{layer}"
_PART = 0.5
_BAMBA_SPELLING = Spelling(max_position=262144, default_norm_eps=1e-5, rope=RopeDefaults(partial=_PART))
_BAMBA_MLP = f"{_LAYER}.feed_forward"


def _read_bamba_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _BAMBA_SPELLING)
    attending = _read_attending(fields, values["num_layers"])
    scans = [layer not in attending for layer in range(values["num_layers"])]
    fields.expect("attn_rotary_emb", int(_PART * values["head_dim"]))
    return DecoderConfig(
        **values
        | {
            "mambas": read_mambas(fields, values["hidden_size"], scans),
            "ropes": tuple(None if scan else rope for rope, scan in zip(values["ropes"], scans, strict=True)),
            "mlp_bias": fields.boolean("mlp_bias", False),
        },
        **read_biases(fields),
    )


def _read_attending(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Returns the layers with attention, of which there is at least one."""
    name = "attn_layer_indices"
    layers = fields.integers(name, least=0) if fields.has(name) else ()
    if not layers or max(layers) >= num_layers:
        raise fields.wrong(name, f"must name layers below num_hidden_layers, {num_layers}, at least one")
    return layers


BAMBA = DecoderFamily(
    read=_read_bamba_config,
    names=NAMES
    | MAMBA_NAMES
    | {
        "blocks.{layer}.mlp_norm": (f"{_LAYER}.pre_ff_layernorm",),
        "blocks.{layer}.mlp.gate_up": (f"{_BAMBA_MLP}.gate_proj", f"{_BAMBA_MLP}.up_proj"),
        "blocks.{layer}.mlp.down": (f"{_BAMBA_MLP}.down_proj",),
        "norm": ("model.final_layernorm",),
    },
    harmless=(*MAMBA_HARMLESS, "num_logits_to_keep", "z_loss_coefficient", "layers_block_type"),
    only={"hidden_act": "silu"},
)


_SPELLING = Spelling(max_position=8192, default_norm_eps=1e-5)
_GATE, _DOWN = 0, 1
"""Of `mlp_multipliers`."""


def _read_falcon_h1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _SPELLING)
    of_mlp = _factors(fields, "mlp_multipliers", 2)
    into, scan_out = fields.number("attention_in_multiplier", 1.0), fields.number("ssm_out_multiplier", 1.0)
    keys = fields.number("key_multiplier", 1.0)
    return DecoderConfig(
        **values,
        mambas=(_read_mamba(fields, values["hidden_size"]),) * values["num_layers"],
        mambas_attend=into * fields.number("attention_out_multiplier", 1.0) / scan_out,
        mixed_scale=scan_out,
        attention_scale=into * into * keys * values["head_dim"] ** -0.5,
        residual_scale=of_mlp[_DOWN],
        gate_scale=of_mlp[_GATE],
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=fields.number("lm_head_multiplier", 1.0),
    )


def _read_mamba(fields: Fields, hidden_size: int) -> MambaConfig:
    """Returns the Mamba-2 layer that all layers have."""
    width = fields.integer("mamba_expand", 2, times=hidden_size) * hidden_size
    if "mamba_d_ssm" not in fields or fields.has("mamba_d_ssm"):
        width = fields.integer("mamba_d_ssm", 1024)
    into = fields.number("ssm_in_multiplier", 1.0)
    gate, x, b, c, step = (into * each for each in _factors(fields, "ssm_multipliers", 5))
    normed = fields.boolean("mamba_rms_norm", False)
    if fields.boolean("mamba_norm_before_gate", True) and normed:
        raise fields.wrong("mamba_norm_before_gate", "must be false where mamba_rms_norm is true")
    return replace(
        read_mamba(fields, width, "mamba_d_ssm"),
        gate_factor=gate,
        input_factors=(x, b, c),
        step_factor=step,
        normed=normed,
    )


def _factors(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    """Returns so many factors, 1 each where there are none. Raises StartupError."""
    if not fields.has(name):
        return (1.0,) * count
    values = fields.numbers(name)
    if len(values) != count:
        raise fields.wrong(name, f"must have {count} factors")
    return values


_PARTS = {
    path.replace("attention.", "attention.attention."): modules
    for path, modules in NAMES.items()
    if ".attention." in path
} | {path.replace("attention.", "attention.mamba."): modules for path, modules in MAMBA_NAMES.items()}
FALCON_H1 = DecoderFamily(
    read=_read_falcon_h1_config,
    names={path: modules for path, modules in NAMES.items() if ".attention." not in path}
    | _PARTS
    | {
        "blocks.{layer}.mlp_norm": (f"{_LAYER}.pre_ff_layernorm",),
        "blocks.{layer}.mlp.gate_up": (f"{_LAYER}.feed_forward.gate_proj", f"{_LAYER}.feed_forward.up_proj"),
        "blocks.{layer}.mlp.down": (f"{_LAYER}.feed_forward.down_proj",),
        "norm": ("model.final_layernorm",),
    },
    harmless=(*MAMBA_HARMLESS, "num_logits_to_keep", "mlp_expansion_factor"),
    only={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "projectors_bias": False}
    | {"mamba_proj_bias": False, "mamba_use_mlp": True, "attn_layer_indices": None},
)


_QWEN_SPELLING = Spelling(
    max_position=32768, head_dim=256, rope=RopeDefaults(partial=0.25, allows_sections=True)
)
_QWEN_ONLY = {"hidden_act": "silu"}
_QWEN_HARMLESS = ("output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers")
_MTP = r"mtp\..*"
"""Pattern of the weights of layers that predict further tokens (worker.speculation.models.head_layers)."""


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
    fields: Fields, common: dict[str, Any], grouped: bool, spelling: Spelling = _QWEN_SPELLING
) -> dict[str, Any]:
    """Returns the fields of DecoderConfig that all families of this form share. grouped: see DeltaConfig.
    Raises StartupError."""
    values = read_decoder(fields, common, spelling)
    deltas = read_deltas(fields, values["num_layers"], grouped)
    ropes = zip(deltas, values["ropes"], strict=True)
    return values | {
        **read_biases(fields),
        "deltas": deltas,
        "ropes": tuple(rope if delta is None else None for delta, rope in ropes),
        "attention_gate": True,
        "norm_offset": 1.0,
        "head_norms": HeadNormKind.PER_HEAD,
    }


def _read_qwen3_next_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_hybrid(fields, common, grouped=True)
    if not has_experts(fields):
        return DecoderConfig(**values)
    normalized = fields.boolean("norm_topk_prob", True)
    experts = read_sparse(fields, values["num_layers"], 10, normalized, size=512, shared_size=512)
    return DecoderConfig(**values, experts=experts)


QWEN3_NEXT = DecoderFamily(
    read=_read_qwen3_next_config,
    names=delta_names("in_proj_qkvz", "in_proj_ba") | EXPERTS | GATED_SHARED,
    other_names=STACKED,
    unused=rf"lm_head\.weight|{UNUSED_GATE}|{_MTP}",
    harmless=_QWEN_HARMLESS,
    only=_QWEN_ONLY,
)


def _read_qwen3_5_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    return DecoderConfig(**read_hybrid(fields, common, grouped=False))


def _read_qwen3_5_moe_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    spelling = replace(_QWEN_SPELLING, intermediate_size="moe_intermediate_size")
    values = read_hybrid(fields, common, grouped=False, spelling=spelling)
    experts = read_sparse(fields, values["num_layers"], 8, normalized=True, size=512, shared_size=512)
    return DecoderConfig(**values, experts=experts)


_NAMES_3_5 = delta_names("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_UNUSED_3_5 = rf"lm_head\.weight|model\.visual\..*|{UNUSED_GATE}|{_MTP}"
_ONLY_3_5 = _QWEN_ONLY | {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
_HARMLESS_3_5 = (*_QWEN_HARMLESS, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
QWEN3_5 = DecoderFamily(
    read=_read_qwen3_5_config,
    names=_NAMES_3_5,
    unused=_UNUSED_3_5,
    harmless=(*_HARMLESS_3_5, "mlp_only_layers"),  # no layer has experts
    only=_ONLY_3_5,
)
QWEN3_5_MOE = DecoderFamily(
    read=_read_qwen3_5_moe_config,
    names=_NAMES_3_5 | EXPERTS | GATED_SHARED,
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
