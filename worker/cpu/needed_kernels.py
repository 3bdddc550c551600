"""Which groups of kernels a model needs, by its configuration alone; known before torch is imported, so that
they are compiled meanwhile (worker.cpu.precompile). What is not foreseen here is compiled when it is used
first, while the model is loaded."""

from pathlib import Path

from kernels.cpu.groups import Group
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.tensor_types import Q4_0
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import Fields, read_config, read_quantization

MXFP4 = "mxfp4"
STORED_IN_GROUPS = ("awq", "compressed-tensors", "gptq", MXFP4)
"""Formats whose integers may be kept (worker.cpu.weights)."""


FIELDS = {
    **{"linear_": Group.STATES, "mamba_": Group.STATES, "kv_lora_": Group.LATENTS},
    **{"num_experts": Group.EXPERTS, "num_local_experts": Group.EXPERTS, "n_routed_experts": Group.EXPERTS},
}
"""Groups that models need whose configurations have a field that begins so."""


def needed_groups(initialize: worker_pb2.Initialize) -> set[Group]:
    """Returns the groups. What cannot be read is reported when the model is loaded."""
    groups, in_groups = {Group.SAMPLER, Group.MODEL}, may_have_groups(initialize)
    if in_groups:
        groups.add(Group.TWO_LEVELS if initialize.quantization else Group.GROUPS)
    if initialize.kv_cache_dtype:
        groups.add(Group.EIGHT_BITS)
    if initialize.quantization:  # it makes integers, of weights in bfloat16; those of the head have 8 bits
        groups |= {Group.BFLOAT16, Group.INT8}
    try:
        config = read_config(Path(initialize.model_path), initialize.config_overrides)
        sections = [config, config.object("text_config")]
        if in_groups and not initialize.quantization and _are_floats(config):
            groups.add(Group.E2M1)
    except StartupError:
        return groups | {Group.BFLOAT16}
    named = {name for section in sections for name in section.names() if section.has(name)}
    groups |= {group for start, group in FIELDS.items() if any(name.startswith(start) for name in named)}
    if not initialize.quantization:
        groups |= _groups_of_dtype(initialize.dtype, sections, in_groups)
    return groups


def _groups_of_dtype(asked: str, sections: list[Fields], in_groups: bool) -> set[Group]:
    """asked: as in Initialize. in_groups: whether weights may be; then float16 is computed in bfloat16. Of
    both dtypes, where the checkpoint does not say its own: then it is that of the weights."""
    said = [section.value(name) for section in sections for name in ("dtype", "torch_dtype")]
    dtype = asked if asked not in ("", "auto") else next((name for name in said if name is not None), None)
    if dtype == "float32" or (dtype == "float16" and not in_groups):
        return {Group.FLOAT32}
    in_bfloat16 = {Group.BFLOAT16, Group.COMPACT}
    return in_bfloat16 if dtype in ("bfloat16", "float16") else {*in_bfloat16, Group.FLOAT32}


def may_have_groups(initialize: worker_pb2.Initialize) -> bool:
    """True if weights are made to integers in groups, or may be stored as such."""
    if initialize.quantization or initialize.load_format == "dummy":
        return initialize.quantization == "int4"
    path = Path(initialize.model_path)
    try:
        if is_gguf(path):
            return any(info.type == Q4_0 for info in read_header(path).tensors.values())
        settings = read_quantization(read_config(path))
        return settings is not None and settings.text("quant_method") in STORED_IN_GROUPS
    except StartupError:  # loading reports it
        return False


def _are_floats(config: Fields) -> bool:
    """Whether a checkpoint has floats of 4 bits in groups."""
    settings = read_quantization(config)
    return settings is not None and settings.text("quant_method") == MXFP4
