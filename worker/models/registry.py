"""The model families, by the names that config.json gives under `architectures`: those of
worker.families.registry, which has how their files are read."""

from pagewire.checkpoints.files import ENCODERS
from worker.config.hf_config import ModelConfig
from worker.families.registry import DECODERS
from worker.families.seeing import SEEING
from worker.models.base import Family
from worker.models.encoder import Encoder
from worker.models.gemma4 import Gemma4Model
from worker.models.opt import OPTModel
from worker.models.transformer import Transformer

_OF_THEIR_OWN = {
    "Gemma4ForCausalLM": Gemma4Model,
    "Gemma4ForConditionalGeneration": Gemma4Model,
    "OPTForCausalLM": OPTModel,
    **dict.fromkeys(ENCODERS.values(), Encoder),
}
FAMILIES: dict[str, Family] = {
    name: Family(
        _OF_THEIR_OWN.get(name, Transformer),
        family.names,
        family.unused,
        optional_prefix=family.optional_prefix,
        other_names=family.other_names,
    )
    for name, family in DECODERS.items()
}


def family_of(config: ModelConfig) -> Family:
    """Returns how a model is built and loaded."""
    if config.vision is None:
        return FAMILIES[config.architecture]
    seeing, decoder = SEEING[config.architecture], DECODERS[config.decoder]
    return Family(
        _OF_THEIR_OWN.get(config.decoder, Transformer),
        seeing.names_of(config.vision, decoder),
        seeing.unused_of(config.vision, decoder),
        optional_prefix=decoder.optional_prefix,
        other_names=seeing.text_names(decoder.other_names),
        spellings=seeing.spellings,
    )
