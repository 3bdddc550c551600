"""Bamba: Llama with Mamba-2 layers in place of most of its attention, which rotates half of each head."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder
from worker.config.hf_config import Fields
from worker.config.mamba import MAMBA_HARMLESS, MAMBA_NAMES, read_mambas
from worker.config.names import NAMES
from worker.config.rope import RopeDefaults

_LAYER = "model.layers.{layer}"
_PART = 0.5
_SPELLING = Spelling(max_position=262144, default_norm_eps=1e-5, rope=RopeDefaults(partial=_PART))
_MLP = f"{_LAYER}.feed_forward"


def read_bamba_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
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
        "blocks.{layer}.mlp.gate_up": (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"),
        "blocks.{layer}.mlp.down": (f"{_MLP}.down_proj",),
        "norm": ("model.final_layernorm",),
    },
    harmless=(*MAMBA_HARMLESS, "num_logits_to_keep", "z_loss_coefficient", "layers_block_type"),
    only={"hidden_act": "silu"},
)
