"""Opens a checkpoint by what its path is and what its configuration says."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pagewire.gguf.header import is_gguf
from worker.config.hf_config import Fields, read_config, read_quantization
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.bitsandbytes import find_bitsandbytes
from worker.weights.formats.compressed_tensors import find_compressed_tensors
from worker.weights.formats.fp8 import find_fp8, find_mxfp4
from worker.weights.formats.gguf import GGUFTensors
from worker.weights.formats.gptq import find_awq, find_gptq
from worker.weights.formats.packed_tensor import PackedTensor, QuantizedCheckpoint
from worker.weights.source import TensorSource

Finder = Callable[[Checkpoint, Fields], dict[str, PackedTensor]]
"""From stored tensors and the quantization_config to the packed weights by name."""

FINDERS: Mapping[str, Finder] = {
    "awq": find_awq,
    "bitsandbytes": find_bitsandbytes,
    "compressed-tensors": find_compressed_tensors,
    "fp8": find_fp8,
    "gptq": find_gptq,
    "mxfp4": find_mxfp4,
}
"""The names are those of worker.config.quantization."""


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
