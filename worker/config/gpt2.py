"""config.json of GPT-2, which has names of its own for everything."""

from dataclasses import dataclass
from typing import Any

from worker.config.hf_config import MAX_LAYERS, Fields, ModelConfig, read_activation

GPT2_HARMLESS = (
    *("n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
)
"""Fields that change nothing: heads of classifiers, a former name of n_positions, how a device multiplies."""


@dataclass(frozen=True, kw_only=True)
class GPT2Config(ModelConfig):
    """A GPT-2 model."""

    inner_size: int  # I
    norm_eps: float
    activation: str
    scales: tuple[float, ...]  # by layer: factor of the attention scores

    @property
    def input_embedding_size(self) -> int:
        return self.hidden_size


def read_gpt2_config(fields: Fields, common: dict[str, Any]) -> GPT2Config:
    """Reads config.json. Raises StartupError."""
    hidden_size, num_heads = fields.integer("n_embd"), fields.integer("n_head")
    num_layers = fields.integer("n_layer", most=MAX_LAYERS)
    if hidden_size % num_heads:
        raise fields.wrong("n_head", f"must divide n_embd ({hidden_size})")
    if fields.boolean("add_cross_attention", False):
        raise fields.wrong("add_cross_attention", "cross-attention is not supported")
    head_dim = hidden_size // num_heads
    scale = head_dim**-0.5 if fields.boolean("scale_attn_weights", True) else 1.0
    by_layer = fields.boolean("scale_attn_by_inverse_layer_idx", False)
    return GPT2Config(
        **common,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        num_layers=num_layers,
        windows=(None,) * num_layers,
        max_position=fields.integer("n_positions", 1024),
        tied=fields.boolean("tie_word_embeddings", True),
        inner_size=fields.integer("n_inner", 4 * hidden_size),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=read_activation(fields, "activation_function", "gelu_new"),
        scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(num_layers)),
    )
