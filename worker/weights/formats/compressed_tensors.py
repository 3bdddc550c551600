"""compressed-tensors: a family of formats that one configuration describes by groups of layers.

pack-quantized (W4A16, W8A16): integers of 4 or 8 bits plus half of their range, packed along K, low bits
first
    weight_packed      [N, K * bits / 32] int32
    weight_scale       [N, G], with G = 1 for one scale per output
    weight_zero_point  [N * bits / 32, G] int32, packed along N; absent where symmetric
    weight_g_idx       [K] int32, the group of each input; absent without act-order
    weight_shape       [2]: N, K

int-quantized (W8A8): weight [N, K] int8 and weight_scale; float-quantized: see worker.weights.formats.fp8.
Inputs stay in 16 bits here.
"""

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.fp8 import scaled_weights
from worker.weights.formats.packed_tensor import (
    PackedTensor,
    expect_shape,
    group_of_columns,
    grouped_tensor,
    matrix_shape,
    modules_with,
    part_names,
    read_group_sizes,
    unpack_integers,
)
from worker.weights.source import WHAT, GroupedIntegers, GroupedRows

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense")
_PARTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "input_scale")


def find_compressed_tensors(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    for name in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        if settings.has(name) and settings.object(name).names():
            raise settings.wrong(name, "it is not supported")
    groups = settings.object("config_groups")
    schemes = [groups.object(name).object("weights") for name in groups.names()]
    for holder in (settings, *(groups.object(name) for name in groups.names())):
        if holder.has("format") and holder.text("format") not in (*FORMATS, "mixed-precision"):
            raise holder.wrong("format", f"only {', '.join(FORMATS)} are supported")
    bits = {each.integer("num_bits") for each in schemes}
    blocks = {each.integers("block_structure") for each in schemes if each.has("block_structure")}
    sizes = set().union(*(read_group_sizes(each, "group_size") for each in schemes))
    block = next(iter(blocks)) if len(blocks) == 1 else ()
    found = scaled_weights(stored, ("F8_E4M3", "I8"), block)
    for module in modules_with(stored, "weight_packed"):
        found[f"{module}.weight"] = _module(stored, module, bits, sizes)
    return found


def _module(stored: Checkpoint, module: str, all_bits: set[int], sizes: set[int]) -> PackedTensor:
    outputs, words = matrix_shape(stored, f"{module}.weight_packed")
    expect_shape(stored, f"{module}.weight_shape", (2,))
    rows, inputs = map(int, stored.read(f"{module}.weight_shape", ()))
    bits = next((each for each in sorted(all_bits & {4, 8}) if words == -(-inputs * each // 32)), None)
    if rows != outputs or inputs < 1 or bits is None:
        raise StartupError(
            WHAT,
            f"tensor {module}.weight_packed has shape {[outputs, words]} for a weight {[rows, inputs]} with "
            f"{sorted(all_bits)} bits, of which 4 and 8 are supported",
        )
    groups = matrix_shape(stored, f"{module}.weight_scale")[1]
    expect_shape(stored, f"{module}.weight_scale", (outputs, groups))
    group = group_of_columns(stored, module, "weight_g_idx", inputs, groups, sizes)
    zeros = _zero_points(stored, module, outputs, groups, bits)

    def read(first: int, end: int) -> GroupedRows:
        rows = (slice(first, end),)
        integers = unpack_integers(stored.read(f"{module}.weight_packed", rows), bits)[:, :inputs]
        return GroupedRows(integers, zeros[first:end], stored.read(f"{module}.weight_scale", rows))

    grouped = GroupedIntegers(bits, group, groups, stored.kind(f"{module}.weight_scale"), read)
    return grouped_tensor((outputs, inputs), part_names(stored, module, _PARTS), grouped)


def _zero_points(stored: Checkpoint, module: str, outputs: int, groups: int, bits: int) -> torch.Tensor:
    """[N, G] uint8, of the integers as they are packed."""
    name = f"{module}.weight_zero_point"
    if name not in stored:
        return torch.full((1, 1), 1 << bits - 1, dtype=torch.uint8).expand(outputs, groups)
    expect_shape(stored, name, (-(-outputs * bits // 32), groups))
    return unpack_integers(stored.read(name, ()).t(), bits).t()[:outputs]
