"""What computes a model: a family of ours, or the modelling code of transformers (--model-impl)."""

from pathlib import Path

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import WHAT, ModelConfig, read_config
from worker.families.registry import is_known, read_model_config
from worker.transformers_backend.config import read_transformers_config

CPU = "cpu"


def choose_implementation(initialize: worker_pb2.Initialize, device: str) -> ModelConfig:
    """Returns the configuration of the model, which says what computes it. Raises StartupError.

    device: "cpu", "cuda" or "simulated".
    """
    path, asked = Path(initialize.model_path), initialize.model_impl or "auto"
    if asked == "native" or (asked == "auto" and (device != CPU or _has_family(path))):
        return read_model_config(path)
    if device != CPU:
        raise StartupError(
            WHAT,
            f"--model-impl transformers is built for a CPU, and the device is {device}",
            "leave it out, or use --device cpu",
        )
    return read_transformers_config(path, initialize.trust_remote_code)


def _has_family(path: Path) -> bool:
    """True for an architecture of ours, and for GGUF files, which nothing else reads."""
    return is_gguf(path) or any(map(is_known, read_config(path).texts("architectures")))
