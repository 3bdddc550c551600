"""Configuration of the layer of a checkpoint that predicts one token more, for drafts. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import WHAT, Fields, ModelConfig
from worker.families.registry import read_model_config

_BEHIND = ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM")
"""Families whose checkpoints have such a layer behind all others."""
_BESIDE = (
    *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
    *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
)
"""Families whose checkpoints have such layers beside the others, under `mtp`."""
MTP_ARCHITECTURES = (*_BEHIND, *_BESIDE)


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """The first such layer of a checkpoint."""

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

    @property
    def has_token_map(self) -> bool:
        """False: it has logits for all tokens."""
        return False


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
