"""The formats, by `quant_method` of a config.json's quantization_config."""

from collections.abc import Callable, Mapping

from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.awq import find_awq
from worker.weights.formats.bitsandbytes import find_bitsandbytes
from worker.weights.formats.compressed_tensors import find_compressed_tensors
from worker.weights.formats.fp8 import find_fp8
from worker.weights.formats.gptq import find_gptq
from worker.weights.formats.mxfp4 import find_mxfp4
from worker.weights.formats.packed_tensor import PackedTensor

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
