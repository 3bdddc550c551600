"""Which models several ranks of a CPU compute with the bits of one, checked before weights are read."""

import torch

from kernels.api import WeightForms
from kernels.cpu.requirements import why_not
from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.config.hf_config import ModelConfig
from worker.cpu.kernel_selection import check_leaves
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.startup.checks import check_split

_WHAT, _REMEDY = "cannot split the model", "leave --tensor-parallel-size out"


def check_ranks(config: ModelConfig, size: int, quantization: str) -> None:
    """Raises StartupError for a model that so many ranks do not compute. quantization: as in Initialize."""
    check_split(config, size, "")
    assert isinstance(config, DecoderConfig)
    if (reason := why_not()) is not None:
        raise StartupError(
            _WHAT, f"ranks need the compiled kernels, whose sums they divide: {reason}", _REMEDY
        )
    if config.has_states or config.latent is not None:
        keeps = "states" if config.has_states else "latents"
        why = (
            f"{config.architecture} keeps {keeps} in place of keys and values, which ranks do not divide yet"
        )
        raise StartupError(_WHAT, why, _REMEDY)
    model = FAMILIES[config.architecture].build(config, Placement(torch.float32, torch.device("meta")))
    check_leaves(model, WeightForms.of(quantization), size)
