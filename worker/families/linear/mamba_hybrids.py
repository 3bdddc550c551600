"""Families with Mamba-2 layers. Bamba: Llama with Mamba-2 layers in place of most of its attention, which
rotates half of each head.

Falcon-H1: attention and a Mamba-2 layer side by side in each layer, and factors of everything.

Factors of what goes into a product come out of it. So that of attention's input becomes one of its scores,
with that of keys, and one of its output. What both parts add to the residual stream is scan * ssm_out +
attention * attention_out: the norm behind them takes the first factor, and the second one is relative to it.
"""

from dataclasses import replace
from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, MambaConfig, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults
from worker.config.states import MAMBA_HARMLESS, MAMBA_NAMES, read_mamba, read_mambas

_LAYER = "model.layers.{layer}"
_PART = 0.5
_BAMBA_SPELLING = Spelling(max_position=262144, default_norm_eps=1e-5, rope=RopeDefaults(partial=_PART))
_BAMBA_MLP = f"{_LAYER}.feed_forward"


def read_bamba_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _BAMBA_SPELLING)
    attending = _read_attending(fields, values["num_layers"])
    scans = [layer not in attending for layer in range(values["num_layers"])]
    bias = fields.boolean("attention_bias", False)
    fields.expect("attn_rotary_emb", int(_PART * values["head_dim"]))
    return DecoderConfig(
        **values
        | {
            "mambas": read_mambas(fields, values["hidden_size"], scans),
            "ropes": tuple(None if scan else rope for rope, scan in zip(values["ropes"], scans, strict=True)),
            "qkv_bias": bias,
            "output_bias": bias,
            "mlp_bias": fields.boolean("mlp_bias", False),
        }
    )


def _read_attending(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Returns the layers with attention, of which there is at least one."""
    name = "attn_layer_indices"
    layers = fields.integers(name, least=0) if fields.has(name) else ()
    if not layers or max(layers) >= num_layers:
        raise fields.wrong(name, f"must name layers below num_hidden_layers, {num_layers}, at least one")
    return layers


BAMBA = DecoderFamily(
    read=read_bamba_config,
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


def read_falcon_h1_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
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
    width = fields.integer("mamba_expand", 2) * hidden_size
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
    read=read_falcon_h1_config,
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
