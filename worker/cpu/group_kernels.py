"""Whether a start needs the kernels of weights in groups; known before torch is imported, so that they are
compiled meanwhile (worker.cpu.precompile)."""

from pathlib import Path

from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.tensor_types import Q4_0
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import read_config, read_quantization

STORED_IN_GROUPS = ("awq", "compressed-tensors", "gptq", "mxfp4")
"""Formats whose integers may be kept (worker.weights.own_bits)."""


def may_have_groups(initialize: worker_pb2.Initialize) -> bool:
    """True if weights are made to integers in groups, or may be stored as such."""
    if initialize.quantization or initialize.load_format == "dummy":
        return initialize.quantization.startswith("int4")
    path = Path(initialize.model_path)
    try:
        if is_gguf(path):
            return any(info.type == Q4_0 for info in read_header(path).tensors.values())
        settings = read_quantization(read_config(path))
        return settings is not None and settings.text("quant_method") in STORED_IN_GROUPS
    except StartupError:  # loading reports it
        return False
