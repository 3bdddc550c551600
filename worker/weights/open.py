"""Opens a checkpoint by what its path is."""

from pathlib import Path

from pagewire.gguf.header import is_gguf
from worker.weights.gguf.tensors import GGUFTensors
from worker.weights.loader import Checkpoint
from worker.weights.source import TensorSource


def open_checkpoint(path: Path) -> TensorSource:
    """Returns the tensors of a folder or a GGUF file; a context manager. Raises StartupError."""
    return GGUFTensors(path) if is_gguf(path) else Checkpoint(path)
