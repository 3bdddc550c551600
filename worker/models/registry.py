"""The model families, by the names that config.json gives under `architectures`: those of
worker.families.registry, which has how their files are read."""

from pagewire.checkpoints.files import ENCODERS
from worker.families.registry import DECODERS
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
