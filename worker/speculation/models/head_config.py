"""Configuration of a head: EAGLE-3 (Li et al., *EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test*, 2025), as SGLang and vLLM read it, or the layer of a checkpoint that predicts
one token more. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig, Spelling, read_decoder
from worker.config.hf_config import HARMLESS, WHAT, Fields, ModelConfig, common_fields, read_config
from worker.families.registry import read_model_config

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_HARMLESS = {*HARMLESS, "rotary_emb", "use_aux_hidden_state", "parallel_drafting"}
_IDS = "eagle_aux_hidden_state_layer_ids"
_NUM_LAYERS = 3
"""Layers of the target whose hidden states are fused, where the file does not say which."""
_REMEDY = "use a head that was trained for this model"
_BEHIND = ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM")
"""Families whose checkpoints have a layer behind all others that predicts one token more."""
_BESIDE = (
    *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
)
"""Families whose checkpoints have such layers apart from the others, under `mtp`."""
MTP_ARCHITECTURES = (*_BEHIND, *_BESIDE)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A head for one target."""

    layer: DecoderConfig  # of its one layer; its vocabulary is the target's
    draft_vocab_size: int  # tokens that it has logits for
    after: tuple[int, ...]  # it reads the target's hidden states behind so many layers
    norms_residual: bool  # the residual stream of its layer begins with normed features

    @property
    def has_token_map(self) -> bool:
        """Whether the head has logits for some tokens of the vocabulary alone: `d2t` says for which."""
        return self.draft_vocab_size < self.layer.vocab_size


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """The first layer of a checkpoint that predicts one token more."""

    layer: DecoderConfig  # of the checkpoint
    is_beside: bool = False  # its tensors are `mtp.*`, and the features of the next token are normed

    @property
    def like(self) -> int:
        """The layer of the checkpoint that it is like: the last one, of those that attend."""
        deltas = self.layer.deltas or (None,) * self.layer.num_layers
        return max(layer for layer, delta in enumerate(deltas) if delta is None)

    @property
    def number(self) -> int:
        """In the names of its tensors."""
        return self.layer.num_layers

    @property
    def after(self) -> tuple[int, ...]:
        """It reads the target's hidden states behind so many layers."""
        return (self.layer.num_layers,)


def read_head_config(path: Path, target: ModelConfig) -> HeadConfig | MtpConfig:
    """Reads config.json of a head. Raises StartupError, also where the head does not fit the target."""
    fields = read_config(path)
    names = fields.texts("architectures")
    if set(names) & set(MTP_ARCHITECTURES):
        return read_mtp_config(path, fields, target)
    if not set(names) & set(ARCHITECTURES):
        why = f"config.json: architecture {', '.join(names)} is no head that is known"
        raise StartupError(WHAT, why, f"known are {', '.join((*ARCHITECTURES, *MTP_ARCHITECTURES))}")
    fields.expect("num_hidden_layers", 1, "a head has one layer")
    layer = _read_layer(fields)
    _check_sizes(fields, layer, target)
    config = HeadConfig(
        layer=layer,
        draft_vocab_size=fields.integer("draft_vocab_size", layer.vocab_size, most=layer.vocab_size),
        after=_read_after(fields, target.num_layers),
        norms_residual=fields.boolean("norm_before_residual", False),
    )
    fields.refuse_unknown(_HARMLESS)
    return config


def _read_layer(fields: Fields) -> DecoderConfig:
    bias = fields.boolean("attention_bias", False)
    fields.expect("mlp_bias", False)
    common = common_fields(fields, ARCHITECTURES[0], {})
    return DecoderConfig(
        **read_decoder(fields, common, Spelling(max_position=2048)), qkv_bias=bias, output_bias=bias
    )


def _check_sizes(fields: Fields, layer: DecoderConfig, target: ModelConfig) -> None:
    """Raises StartupError unless head and target have the same tokens and the same hidden size."""
    if layer.vocab_size != target.vocab_size:
        why = f"the head's vocabulary has {layer.vocab_size} tokens, the target's {target.vocab_size}"
        raise StartupError(WHAT, why, _REMEDY)
    hidden = fields.integer("target_hidden_size", layer.hidden_size)
    for size, name in ((hidden, "target_hidden_size"), (layer.hidden_size, "hidden_size")):
        if size != target.hidden_size:
            why = f"the head's {name} is {size}, the target's hidden_size {target.hidden_size}"
            raise StartupError(WHAT, why, _REMEDY)


def _read_after(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Returns behind how many layers of the target hidden states are read. Files for vLLM count them at the
    top; `eagle_config`, which SGLang reads, has the numbers of the layers themselves, from 0 on."""
    nested = fields.object("eagle_config")
    nested.expect("use_aux_hidden_state", True)
    if fields.has(_IDS):
        where, after = fields, fields.integers(_IDS, least=0)
    elif nested.has(_IDS):
        where, after = nested, tuple(number + 1 for number in nested.integers(_IDS, least=0))
    else:
        where, after = fields, (2, num_layers // 2, num_layers - _NUM_LAYERS)
    if not after or len(set(after)) < len(after) or not all(1 <= number <= num_layers for number in after):
        raise where.wrong(_IDS, f"must name different layers of the target, which has {num_layers}")
    return after


def read_mtp_config(path: Path, fields: Fields, target: ModelConfig) -> MtpConfig:
    """Reads config.json of a checkpoint with such a layer. Raises StartupError, also where the target is
    another model."""
    _check_layers(fields)
    config = read_model_config(path)
    assert isinstance(config, DecoderConfig)
    for name in ("architecture", "vocab_size", "hidden_size", "num_layers"):
        own, wanted = getattr(config, name), getattr(target, name)
        if own != wanted:
            why = f"its {name} is {own}, the target's is {wanted}"
            raise StartupError(WHAT, why, "name the checkpoint of the target itself")
    return MtpConfig(layer=config, is_beside=config.architecture in _BESIDE)


def _check_layers(fields: Fields) -> None:
    """Raises StartupError where a config.json says that no layer predicts a token more, or has an embedding
    of its own. Files of layers beside the others may say nothing: then there is one."""
    name = "num_nextn_predict_layers"
    if set(fields.texts("architectures")) & set(_BESIDE):
        fields = fields.object("text_config") if fields.has("text_config") else fields
        name, count = "mtp_num_hidden_layers", fields.integer("mtp_num_hidden_layers", 1, least=0)
        fields.expect("mtp_use_dedicated_embeddings", False)
    else:
        count = fields.integer(name, fields.integer("num_mtp_layers", 0, least=0), least=0)
    if count < 1:
        why = f"config.json: {name} is 0, so no layer predicts a token more"
        raise StartupError(WHAT, why, "use a checkpoint that has one, or --speculate lookup")
