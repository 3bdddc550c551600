"""config.json of Llama, and the fields that its relatives share."""

from dataclasses import dataclass
from typing import Any

from worker.config.hf_config import (
    MAX_LAYERS,
    Fields,
    ModelConfig,
    RopeConfig,
    head_fields,
    read_activation,
    read_rope,
    scaled_max_position,
)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """A Llama model, or one of its relatives."""

    intermediate_size: int  # I
    norm_eps: float
    activation: str
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    rope: RopeConfig

    @property
    def depends_on_prompt_len(self) -> bool:
        """True with dynamic scaling, whose angles depend on the prompt's length; see worker.layers.rotary."""
        return self.rope.kind == "dynamic"


def read_common_config(
    fields: Fields, common: dict[str, Any], max_position: int, head_dim: int | None = None
) -> dict[str, Any]:
    """Reads the fields that Llama and its relatives have in common. max_position, head_dim: the family's
    defaults."""
    heads = head_fields(fields, head_dim)
    trained = fields.integer("max_position_embeddings", max_position)
    rope = read_rope(fields, trained, heads["head_dim"])
    return {
        **common,
        **heads,
        "rope": rope,
        "max_position": scaled_max_position(rope, trained),
        "num_layers": fields.integer("num_hidden_layers", most=MAX_LAYERS),
        "tied": fields.boolean("tie_word_embeddings", False),
        "intermediate_size": fields.integer("intermediate_size"),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "activation": read_activation(fields, "hidden_act", "silu"),
    }


def read_llama_config(fields: Fields, common: dict[str, Any]) -> LlamaConfig:
    """Reads config.json. Raises StartupError."""
    values = read_common_config(fields, common, max_position=2048)
    attention_bias = fields.boolean("attention_bias", False)
    return LlamaConfig(
        **values,
        windows=(None,) * values["num_layers"],
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )
