"""Encoders: norms behind the sum with each part of a block, learned positions and types of tokens."""

from typing import Any

from worker.config.decoder import DecoderFamily, NormKind, NormPlace, Spelling, read_sizes
from worker.config.encoder import EncoderConfig
from worker.config.hf_config import Fields


def _spelling(default_norm_eps: float) -> Spelling:
    return Spelling(
        max_position=512,
        norm_eps="layer_norm_eps",
        default_norm_eps=default_norm_eps,
        default_activation="gelu",
        tied=True,
    )


def _read_bert(values: dict[str, Any], num_token_types: int) -> dict[str, Any]:
    return values | {
        "ropes": (None,) * values["num_layers"],
        "gated": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "norm_place": NormPlace.LAST,
        "norm_kind": NormKind.LAYER,
        "learned_positions": True,
        "num_token_types": num_token_types,
    }


def read_bert_config(fields: Fields, common: dict[str, Any]) -> EncoderConfig:
    """Reads config.json. Raises StartupError."""
    values = read_sizes(fields, common, _spelling(1e-12))
    return EncoderConfig(**_read_bert(values, fields.integer("type_vocab_size", 2)))


def _names(prefix: str) -> dict[str, tuple[str, ...]]:
    block, attention = f"{prefix}.encoder.layer.{{layer}}", f"{prefix}.encoder.layer.{{layer}}.attention"
    return {
        "embedding": (f"{prefix}.embeddings.word_embeddings",),
        "positions": (f"{prefix}.embeddings.position_embeddings",),
        "token_types": (f"{prefix}.embeddings.token_type_embeddings",),
        "embedding_norm": (f"{prefix}.embeddings.LayerNorm",),
        "blocks.{layer}.attention.qkv": tuple(
            f"{attention}.self.{part}" for part in ("query", "key", "value")
        ),
        "blocks.{layer}.attention.output": (f"{attention}.output.dense",),
        "blocks.{layer}.attention_norm": (f"{attention}.output.LayerNorm",),
        "blocks.{layer}.mlp.up": (f"{block}.intermediate.dense",),
        "blocks.{layer}.mlp.down": (f"{block}.output.dense",),
        "blocks.{layer}.mlp_norm": (f"{block}.output.LayerNorm",),
        "head": ("cls.predictions.decoder",),
    }


_HARMLESS = ("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout")
_ONLY = {"position_embedding_type": "absolute", "is_decoder": False}
BERT = DecoderFamily(
    read=read_bert_config,
    names=_names("bert"),
    optional_prefix="bert.",
    unused=r"(bert\.)?pooler\..+|(bert\.)?embeddings\.position_ids|cls\..+",
    harmless=_HARMLESS,
    only=_ONLY,
)
