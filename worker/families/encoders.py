"""Encoders.

BERT, RoBERTa    norms behind the sum with each part of a block, learned positions, types of tokens.
                 XLM-RoBERTa is RoBERTa with other words; positions begin behind the row of the padding token
DistilBERT       BERT without types of tokens, under names of its own
ModernBERT       norms before the parts but the first one, rotary positions, windows in most layers, no biases
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from worker.config.decoder import (
    FULL,
    SLIDING,
    DecoderFamily,
    NormKind,
    NormPlace,
    Spelling,
    read_biases,
    read_kinds,
    read_sizes,
    windows_of,
)
from worker.config.encoder import EncoderConfig
from worker.config.hf_config import Fields, read_activation
from worker.config.rope import RopeConfig, RopeDefaults, read_rope_object
from worker.families.learned_positions import read_plain_sizes

_BERT = Spelling(
    max_position=512,
    norm_eps="layer_norm_eps",
    default_norm_eps=1e-12,
    default_activation="gelu",
    tied=True,
)
_MODERN_BERT = Spelling(
    max_position=8192,
    norm_eps="norm_eps",
    default_norm_eps=1e-5,
    activation="hidden_activation",
    default_activation="gelu",
    tied=True,
)
_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def _read_bert_config(fields: Fields, common: dict[str, Any]) -> EncoderConfig:
    values = read_sizes(fields, common, _BERT)
    return EncoderConfig(
        **values,
        ropes=(None,) * values["num_layers"],
        gated=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_place=NormPlace.LAST,
        norm_kind=NormKind.LAYER,
        learned_positions=True,
        num_token_types=fields.integer("type_vocab_size", 2),
    )


def _read_roberta_config(fields: Fields, common: dict[str, Any]) -> EncoderConfig:
    config = _read_bert_config(fields, common)
    offset = fields.integer("pad_token_id", 1, least=0) + 1
    if offset >= config.max_position:
        raise fields.wrong("max_position_embeddings", f"must be more than {offset}, where positions begin")
    return replace(config, max_position=config.max_position - offset, position_offset=offset)


def _read_distilbert_config(fields: Fields, common: dict[str, Any]) -> EncoderConfig:
    return EncoderConfig(
        **read_plain_sizes(fields, common, "dim", "n_heads", "n_layers"),
        max_position=fields.integer("max_position_embeddings", 512),
        intermediate_size=fields.integer("hidden_dim"),
        norm_eps=1e-12,
        activation=read_activation(fields, "activation", "gelu"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_place=NormPlace.LAST,
        norm_kind=NormKind.LAYER,
    )


def _read_modern_bert_config(fields: Fields, common: dict[str, Any]) -> EncoderConfig:
    values = read_sizes(fields, common, _MODERN_BERT)
    period = fields.integer("global_attn_every_n_layers", 3)
    kinds = read_kinds(fields, [SLIDING if layer % period else FULL for layer in range(values["num_layers"])])
    window = fields.integer("local_attention", 128) // 2 + 1  # of each side, the token itself included
    has_norm_bias = fields.boolean("norm_bias", False)
    return EncoderConfig(
        **values | {"windows": windows_of(kinds, window)},
        ropes=tuple(map(_read_ropes(fields, values).__getitem__, kinds)),
        **read_biases(fields),
        mlp_bias=fields.boolean("mlp_bias", False),
        first_norm=False,
        norm_kind=NormKind.LAYER if has_norm_bias else NormKind.LAYER_WITHOUT_BIAS,
    )


def _read_ropes(fields: Fields, values: dict[str, Any]) -> dict[str, RopeConfig]:
    """Returns the rotary parameters by kind of layer."""
    sizes, parameters = (values["max_position"], values["head_dim"]), fields.object("rope_parameters")
    parameters.refuse_unknown(_THETAS)
    found = {}
    for kind, (name, default) in _THETAS.items():
        theta = RopeDefaults(theta=fields.number(name, default, above=1.0))
        found[kind] = read_rope_object(parameters.object(kind), Fields({}, "config.json"), *sizes, theta)
    return found


_OF_HEADS = "sentence_transformers", "sbert_ce_default_activation_function"


def _family(
    prefix: str, read: Callable[[Fields, dict[str, Any]], EncoderConfig], predictions: str
) -> DecoderFamily:
    """Returns BERT, or what has its parts and names. prefix: of the encoder's tensors. predictions: that of
    what predicts tokens, which is not a part of the model."""
    block, attention = f"{prefix}.encoder.layer.{{layer}}", f"{prefix}.encoder.layer.{{layer}}.attention"
    return DecoderFamily(
        read=read,
        names={
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
            "head": (f"{predictions}.decoder",),
        },
        optional_prefix=f"{prefix}.",
        unused=rf"({prefix}\.)?(pooler\..+|embeddings\.position_ids)|(cls|lm_head|classifier)\..+",
        harmless=("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", *_OF_HEADS),
        only={"position_embedding_type": "absolute", "is_decoder": False},
    )


BERT = _family("bert", _read_bert_config, "cls.predictions")
ROBERTA = _family("roberta", _read_roberta_config, "lm_head")
_DISTILBERT_LAYER = "distilbert.transformer.layer.{layer}"
DISTILBERT = DecoderFamily(
    read=_read_distilbert_config,
    names={
        "embedding": ("distilbert.embeddings.word_embeddings",),
        "positions": ("distilbert.embeddings.position_embeddings",),
        "embedding_norm": ("distilbert.embeddings.LayerNorm",),
        "blocks.{layer}.attention.qkv": tuple(f"{_DISTILBERT_LAYER}.attention.{part}_lin" for part in "qkv"),
        "blocks.{layer}.attention.output": (f"{_DISTILBERT_LAYER}.attention.out_lin",),
        "blocks.{layer}.attention_norm": (f"{_DISTILBERT_LAYER}.sa_layer_norm",),
        "blocks.{layer}.mlp.up": (f"{_DISTILBERT_LAYER}.ffn.lin1",),
        "blocks.{layer}.mlp.down": (f"{_DISTILBERT_LAYER}.ffn.lin2",),
        "blocks.{layer}.mlp_norm": (f"{_DISTILBERT_LAYER}.output_layer_norm",),
        "head": ("vocab_projector",),
    },
    optional_prefix="distilbert.",
    unused=r"(distilbert\.)?embeddings\.position_ids|(vocab_.+|pre_classifier|classifier)\..+",
    # Sinusoidal positions are in the checkpoint, as learned ones are; the others matter in training alone.
    harmless=(
        *("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "output_past"),
        *_OF_HEADS,
    ),
)
MODERN_BERT = DecoderFamily(
    read=_read_modern_bert_config,
    names={
        "embedding": ("model.embeddings.tok_embeddings",),
        "embedding_norm": ("model.embeddings.norm",),
        "blocks.{layer}.attention_norm": ("model.layers.{layer}.attn_norm",),
        "blocks.{layer}.attention.qkv": ("model.layers.{layer}.attn.Wqkv",),
        "blocks.{layer}.attention.output": ("model.layers.{layer}.attn.Wo",),
        "blocks.{layer}.mlp_norm": ("model.layers.{layer}.mlp_norm",),
        "blocks.{layer}.mlp.gate_up": ("model.layers.{layer}.mlp.Wi",),
        "blocks.{layer}.mlp.down": ("model.layers.{layer}.mlp.Wo",),
        "norm": ("model.final_norm",),
        "head": ("decoder",),
    },
    unused=r"head\..+|decoder\..+|classifier\..+",
    harmless=(
        *("cls_token_id", "initializer_cutoff_factor", "mlp_dropout", "decoder_bias", "reference_compile"),
        *("classifier_pooling", "classifier_bias", "classifier_activation", "repad_logits_with_grad"),
        *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"),
        *("layer_norm_eps", *_OF_HEADS),
    ),
    only={"position_embedding_type": "absolute"},
)
