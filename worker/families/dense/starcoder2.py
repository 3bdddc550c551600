"""Starcoder 2: layer norms, biases, and a feed-forward part without a gate."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, NormKind, Spelling, read_decoder, read_window
from worker.config.hf_config import Fields
from worker.config.names import NAMES

_SPELLING = Spelling(
    max_position=4096,
    norm_eps="norm_epsilon",
    default_norm_eps=1e-5,
    default_activation="gelu_pytorch_tanh",
    tied=True,
)


def read_starcoder2_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_decoder(fields, common, _SPELLING)
    bias = fields.boolean("use_bias", True)
    values["windows"] = (read_window(fields, None),) * values["num_layers"]
    return DecoderConfig(
        **values, gated=False, norm_kind=NormKind.LAYER, qkv_bias=bias, output_bias=bias, mlp_bias=bias
    )


STARCODER2 = DecoderFamily(
    read=read_starcoder2_config,
    names=NAMES
    | {
        "blocks.{layer}.mlp.up": ("model.layers.{layer}.mlp.c_fc",),
        "blocks.{layer}.mlp.down": ("model.layers.{layer}.mlp.c_proj",),
    },
    harmless=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    only={"norm_type": "layer_norm", "mlp_type": "default"},
)
