"""The model families, by the names that config.json gives under `architectures`: those of
worker.families.registry, which has how their files are read."""

from pagewire.checkpoints.files import ENCODERS
from worker.config.audio import AudioConfig
from worker.config.hf_config import ModelConfig
from worker.families.hearing import HEARING, HearingFamily
from worker.families.registry import DECODERS
from worker.families.seeing import SEEING, SeeingFamily
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
    if not config.decoder:
        return FAMILIES[config.architecture]
    beside: SeeingFamily | HearingFamily
    decoder = DECODERS[config.decoder]
    if isinstance(config.vision, AudioConfig):
        beside = hearing = HEARING[config.architecture]
        names, unused = hearing.names_of(decoder), hearing.unused_of(decoder)
    else:
        beside = seeing = SEEING[config.architecture]
        names, unused = seeing.names_of(config.vision, decoder), seeing.unused_of(config.vision, decoder)
    return Family(
        _OF_THEIR_OWN.get(config.decoder, Transformer),
        names,
        unused,
        optional_prefix=decoder.optional_prefix,
        other_names=beside.text_names(decoder.other_names),
        spellings=beside.spellings,
    )
