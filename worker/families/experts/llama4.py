"""Llama 4: attention within chunks, every fourth layer without positions and over all tokens; experts whose
inputs are weighed by sigmoids, and one for all tokens. Of checkpoints that see images the text is computed.

Queries and keys are normed without a weight, before the rotation in place of after it: a rotation changes no
size, so both are the same function.
"""

from dataclasses import replace
from typing import Any

from kernels.ops.experts.routing import Score
from worker.config.decoder import (
    CHUNKED,
    FULL,
    DecoderConfig,
    DecoderFamily,
    HeadNormKind,
    Spelling,
    TemperatureConfig,
    read_biases,
    read_decoder,
    read_kinds,
    read_rotated_layers,
    windows_of,
)
from worker.config.experts import ExpertsConfig, read_routing
from worker.config.hf_config import MAX_SIZE, MOST, Fields
from worker.config.names import NAMES, expert_names, prefixed, shared_names, stacked_names
from worker.config.rope import RopeDefaults

_SPELLING = Spelling(
    max_position=131072,
    head_dim=128,
    default_norm_eps=1e-5,
    intermediate_size="intermediate_size_mlp",
    rope=RopeDefaults(theta=500_000.0, interleaved=True),
)


def _read_chunk(fields: Fields) -> int | None:
    """Returns the tokens of a chunk: null means none, an absent field the default. Raises StartupError."""
    name = "attention_chunk_size"
    return fields.integer(name, 8192, most=MOST) if fields.has(name) or name not in fields else None


def _read_experts(fields: Fields, num_layers: int) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer. Raises StartupError."""
    size = fields.integer("intermediate_size")
    routing = read_routing(
        fields, "num_local_experts", "num_experts_per_tok", 1, score=Score.SIGMOID_OF_CHOSEN
    )
    config = ExpertsConfig(
        routing=routing, intermediate_size=size, shared_size=size, transposed=True, weighs_inputs=True
    )
    step = fields.integer("interleave_moe_layer_step", 1)
    sparse: tuple[int, ...] = tuple(range(step - 1, num_layers, step))
    if fields.has("moe_layers"):
        sparse = fields.integers("moe_layers", least=0)
    return tuple(config if layer in sparse else None for layer in range(num_layers))


def _read_temperature(fields: Fields, max_position: int) -> TemperatureConfig | None:
    """Raises StartupError, also where there are more than MAX_SIZE factors."""
    fewest = max(1, max_position // MAX_SIZE)
    floor_scale = fields.integer("floor_scale", 8192, least=fewest, most=MOST)
    config = TemperatureConfig(scale=fields.number("attn_scale", 0.1), floor_scale=floor_scale)
    tuned = fields.value("attn_temperature_tuning")
    if isinstance(tuned, int) and tuned > 1:  # the first files say 4
        return config
    return config if fields.boolean("attn_temperature_tuning", True) else None


def _read_llama4_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    values = read_decoder(fields, common, _SPELLING)
    num_layers = values["num_layers"]
    stated = bool(fields.value("no_rope_layers"))  # an empty list says nothing, too
    rotates = read_rotated_layers(fields, num_layers, stated)
    kinds = read_kinds(fields, tuple(CHUNKED if on else FULL for on in rotates), CHUNKED)
    normed, rope = fields.boolean("use_qk_norm", True), values["ropes"][0]
    if normed and rope.attention_factor != 1:
        raise fields.wrong("use_qk_norm", "rotary parameters that scale cos and sin need false")
    return DecoderConfig(
        **values
        | {"ropes": tuple(rope if on else None for on in rotates)}
        | {"windows": windows_of(kinds, _read_chunk(fields), CHUNKED)},
        chunked=True,
        **read_biases(fields),
        head_norms=HeadNormKind.ROTATED if normed else HeadNormKind.NONE,
        temperature=_read_temperature(fields, values["max_position"]),
        experts=_read_experts(fields, num_layers),
    )


_PART = "model.layers.{layer}.feed_forward"
_NAMES = (
    NAMES
    | expert_names("feed_forward", "router", "gate_proj", "up_proj", "down_proj")
    | shared_names("feed_forward.shared_expert")
    | {
        "blocks.{layer}.mlp.gate_up": (f"{_PART}.gate_proj", f"{_PART}.up_proj"),
        "blocks.{layer}.mlp.down": (f"{_PART}.down_proj",),
    }
)
_STACKED = stacked_names("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")
_IMAGES = r"vision_model\..*|multi_modal_projector\..*"
LLAMA4 = DecoderFamily(
    read=_read_llama4_config,
    names=_NAMES,
    other_names=_STACKED,
    harmless=("output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "for_llm_compressor"),
)
LLAMA4_SEEING = replace(
    LLAMA4,
    names=prefixed("language_model.", _NAMES),
    other_names=prefixed("language_model.", _STACKED),
    unused=rf"{_IMAGES}|language_model\.(?:{DecoderFamily.unused})",
    nested=True,
)
