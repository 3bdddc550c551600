"""config.json of OPT."""

from dataclasses import dataclass
from typing import Any

from worker.config.hf_config import MAX_LAYERS, Fields, ModelConfig, read_activation

POSITION_OFFSET = 2
"""The first two rows of the position table stand for padding."""
OPT_HARMLESS = ("init_std", "layerdrop")
"""Fields that matter in training alone."""


@dataclass(frozen=True, kw_only=True)
class OPTConfig(ModelConfig):
    """An OPT model."""

    ffn_size: int  # I
    embedding_size: int
    activation: str
    bias: bool
    norm_first: bool
    final_norm: bool
    norm_affine: bool

    @property
    def state_size(self) -> int:
        return self.embedding_size

    @property
    def input_embedding_size(self) -> int:
        return self.embedding_size


def read_opt_config(fields: Fields, common: dict[str, Any]) -> OPTConfig:
    """Reads config.json. Raises StartupError."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    if hidden_size % num_heads:
        raise fields.wrong("num_attention_heads", f"must divide hidden_size ({hidden_size})")
    norm_first = fields.boolean("do_layer_norm_before", True)
    bare = fields.boolean("_remove_final_layer_norm", False)
    return OPTConfig(
        **common,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        num_layers=num_layers,
        windows=(None,) * num_layers,
        max_position=fields.integer("max_position_embeddings", 2048),
        tied=fields.boolean("tie_word_embeddings", True),
        ffn_size=fields.integer("ffn_dim"),
        embedding_size=fields.integer("word_embed_proj_dim", hidden_size),
        activation=read_activation(fields, "activation_function", "relu"),
        bias=fields.boolean("enable_bias", True),
        norm_first=norm_first,
        final_norm=norm_first and not bare,
        norm_affine=fields.boolean("layer_norm_elementwise_affine", True),
    )
