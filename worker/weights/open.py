"""Opens a checkpoint by what its path is and what its configuration says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pagewire.gguf.header import is_gguf
from worker.config.hf_config import read_config, read_quantization
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.packed_tensor import QuantizedCheckpoint
from worker.weights.formats.registry import FINDERS
from worker.weights.gguf.tensors import GGUFTensors
from worker.weights.source import TensorSource


@contextmanager
def open_checkpoint(path: Path) -> Iterator[TensorSource]:
    """Gives the tensors of a folder or a GGUF file. Raises StartupError."""
    if is_gguf(path):
        with GGUFTensors(path) as tensors:
            yield tensors
        return
    settings = read_quantization(read_config(path))
    with Checkpoint(path) as stored:
        if settings is None:
            yield stored
        else:
            kind = settings.text("quant_method")
            yield QuantizedCheckpoint(stored, FINDERS[kind](stored, settings), kind)
