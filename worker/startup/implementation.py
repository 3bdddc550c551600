"""What computes a model: a family of ours, or other modelling code (--model-impl), which a plug-in brings: a
ForeignConfig, read by an entry point of the group `pagewire.model_implementations`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from pagewire.plugins import find_plugin
from worker.config.hf_config import WHAT, ModelConfig, read_config
from worker.exactness import Exactness
from worker.families.registry import is_known, read_model_config
from worker.group_shape import group_shape

if TYPE_CHECKING:
    import torch

    from worker.models.base import LanguageModel

CPU = "cpu"


class ForeignConfig(ModelConfig, ABC):
    """The configuration of a model that code of another library computes, on a CPU."""

    @abstractmethod
    def load(
        self,
        initialize: worker_pb2.Initialize,
        choose: "Callable[[torch.dtype], torch.dtype]",
        progress: Callable[[float], None],
    ) -> "tuple[LanguageModel, torch.dtype]":
        """Returns the model with its weights, and the dtype that it computes in: choose() of the
        checkpoint's. Raises StartupError for a model that cannot be driven."""

    @abstractmethod
    def exactness(self, products: Exactness) -> Exactness:
        """Returns what the model promises. products: what its linear layers compute with."""


def choose_implementation(initialize: worker_pb2.Initialize, device: str) -> ModelConfig:
    """Returns the configuration of the model, which says what computes it. Raises StartupError.

    device: "cpu", "cuda" or "simulated".
    """
    path, asked = Path(initialize.model_path), initialize.model_impl or "auto"
    overrides, tokenizer = initialize.config_overrides, initialize.tokenizer_path
    if asked == "native" or (asked == "auto" and (device != CPU or _has_family(path, overrides))):
        stages = group_shape(initialize)[1]
        return read_model_config(path, overrides, Path(tokenizer) if tokenizer else None, stages)
    name = "transformers" if asked == "auto" else asked
    if device != CPU:
        raise StartupError(
            WHAT,
            f"--model-impl {name} is built for a CPU, and the device is {device}",
            "leave it out, or use --device cpu",
        )
    for flag, value in (("--hf-overrides", overrides), ("--tokenizer", tokenizer)):
        if value:
            raise StartupError(
                WHAT, f"{flag} is for native families, and {name} computes the model", "leave it out"
            )
    read = find_plugin("pagewire.model_implementations", name).load()
    config: ForeignConfig = read(path, initialize.trust_remote_code)
    return config


def _has_family(path: Path, overrides: str) -> bool:
    """True for an architecture of ours, and for GGUF files, which nothing else reads."""
    return is_gguf(path) or any(map(is_known, read_config(path, overrides).texts("architectures")))
