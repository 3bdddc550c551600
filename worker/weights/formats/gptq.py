"""GPTQ: integers of 2, 4 or 8 bits with a scale and a zero point per group of inputs and output.

qweight [K * bits / 32, N] int32    packed along K, low bits first
qzeros  [G, N * bits / 32] int32    packed along N; format "gptq" stores zero points minus 1
scales  [G, N]
g_idx   [K] int32                   the group of each input; any order with desc_act

weight[n, k] = (q[k, n] - zero[g_idx[k], n]) * scale[g_idx[k], n]
"""

import torch

from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
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
from worker.weights.source import GroupedIntegers, GroupedRows

BITS = (2, 4, 8)
_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


def find_gptq(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    bits = settings.integer("bits")
    if bits not in BITS:
        raise settings.wrong("bits", f"only {BITS} are supported")
    kind = settings.text("checkpoint_format", "gptq")
    if kind not in _OFFSETS:
        raise settings.wrong("checkpoint_format", f"only {', '.join(_OFFSETS)} are supported")
    sizes = read_group_sizes(settings, "group_size")
    settled = bits, _OFFSETS[kind], sizes
    return {f"{name}.weight": _module(stored, name, *settled) for name in modules_with(stored, "qweight")}


def _module(stored: Checkpoint, module: str, bits: int, offset: int, sizes: set[int]) -> PackedTensor:
    per_word = 32 // bits
    packed_rows, outputs = matrix_shape(stored, f"{module}.qweight")
    inputs = packed_rows * per_word
    groups = matrix_shape(stored, f"{module}.scales")[0]
    expect_shape(stored, f"{module}.scales", (groups, outputs))
    expect_shape(stored, f"{module}.qzeros", (groups, outputs // per_word))
    group = group_of_columns(stored, module, "g_idx", inputs, groups, sizes)

    def read(first: int, end: int) -> GroupedRows:
        rows = slice(first, end)
        integers = unpack_integers(stored.read(f"{module}.qweight", (slice(None), rows)).t(), bits)
        around = slice(first // per_word, -(-end // per_word))
        zeros = unpack_integers(stored.read(f"{module}.qzeros", (slice(None), around)), bits)
        inner = first - around.start * per_word
        zeros = zeros[:, inner : inner + end - first].t().to(torch.int16) + offset  # up to 256
        return GroupedRows(integers, zeros, stored.read(f"{module}.scales", (slice(None), rows)).t())

    grouped = GroupedIntegers(bits, group, groups, stored.kind(f"{module}.scales"), read)
    return grouped_tensor((outputs, inputs), part_names(stored, module, _PARTS), grouped)
