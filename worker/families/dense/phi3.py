"""Phi-3 and Phi-4: Llama whose checkpoints hold query, key and value, and gate and up, in one weight each;
rotary positions for long contexts, of a part of each head where the file says so."""

from typing import Any

from worker.config.decoder import DecoderConfig, DecoderFamily, Spelling, read_decoder, read_window
from worker.config.hf_config import Fields
from worker.config.names import FUSED, NAMES
from worker.config.rope import RopeDefaults

_ROPE = RopeDefaults(partial=1.0, original_max_position=4096)


def read_phi3_config(fields: Fields, common: dict[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises StartupError."""
    spelling = Spelling(max_position=4096, default_norm_eps=1e-5, rope=_ROPE)
    values = read_decoder(fields, common, spelling)
    values["windows"] = (read_window(fields, None),) * values["num_layers"]
    return DecoderConfig(**values)


PHI3 = DecoderFamily(
    read=read_phi3_config,
    names=NAMES | FUSED,
    harmless=("original_max_position_embeddings", "full_attn_mod", "interpolate_factor", "lm_head_bias"),
    only={"attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
)
