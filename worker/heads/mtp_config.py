"""Configuration of the layer of a checkpoint that predicts one token more, for drafts. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import WHAT, Fields, ModelConfig
from worker.families.registry import read_model_config

MTP_ARCHITECTURES = ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM")
"""Families whose checkpoints have such a layer behind all others."""


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """The first such layer of a checkpoint."""

    layer: DecoderConfig  # of the checkpoint, whose last layer it is like

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
    if fields.integer("num_nextn_predict_layers", fields.integer("num_mtp_layers", 0, least=0), least=0) < 1:
        why = "config.json: num_nextn_predict_layers is 0, so no layer predicts a token more"
        raise StartupError(WHAT, why, "use a checkpoint that has one, or --speculate lookup")
    config = read_model_config(path)
    assert isinstance(config, DecoderConfig)
    for name in ("architecture", "vocab_size", "hidden_size", "num_layers"):
        own, wanted = getattr(config, name), getattr(target, name)
        if own != wanted:
            why = f"its {name} is {own}, the target's is {wanted}"
            raise StartupError(WHAT, why, "name the checkpoint of the target itself")
    return MtpConfig(layer=config)
