"""Which models several ranks of a CPU compute with the bits of one, checked before weights are read."""

import torch

from kernels.api import WeightForms
from kernels.cpu.requirements import why_not
from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import ModelConfig
from worker.config.split import stage_layers
from worker.cpu.kernel_selection import check_leaves
from worker.models.base import LanguageModel
from worker.models.registry import family_of
from worker.models.staged import StagedModel
from worker.parallel import Placement, divide_layers
from worker.startup.checks import check_split

_WHAT, _REMEDY = "cannot split the model", "leave --tensor-parallel-size and --pipeline-parallel-size out"
_NO_STAGES = "leave --pipeline-parallel-size out"


def check_ranks(config: ModelConfig, size: int, quantization: str) -> LanguageModel:
    """Returns the model, without memory for its weights. Raises StartupError for one whose layers so many
    ranks do not share. quantization: as in Initialize."""
    check_split(config, size, "")
    if not isinstance(config, DecoderConfig):
        why = f"{config.implementation} computes {config.architecture} in one worker"
        raise StartupError(_WHAT, why, _NO_STAGES)
    if (reason := why_not()) is not None:
        raise StartupError(
            _WHAT, f"ranks need the compiled kernels, whose sums they divide: {reason}", _REMEDY
        )
    model = family_of(config).build(config, Placement(torch.float32, torch.device("meta")))
    check_leaves(model, WeightForms.of(quantization), size)
    return model


def divide_stages(config: ModelConfig, model: LanguageModel, stages: int) -> tuple[int, ...]:
    """Returns the first layer of each stage, and behind the last one: stages multiply by about as many
    weights. config, model: of check_ranks(); there are layers for so many stages (check_stages())."""
    assert isinstance(config, DecoderConfig) and isinstance(model, StagedModel)
    sizes = [sum(weight.numel() for weight in block.parameters()) for block in model.layers]
    return divide_layers(sizes, model.head.weight.numel(), stages, stage_layers(config))
