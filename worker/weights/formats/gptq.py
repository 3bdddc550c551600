"""GPTQ and AWQ: integers with a scale and a zero point per group of inputs and output.

    GPTQ, 2, 4 or 8 bits
    qweight [K * bits / 32, N] int32    packed along K, low bits first
    qzeros  [G, N * bits / 32] int32    packed along N; format "gptq" stores zero points minus 1
    scales  [G, N]
    g_idx   [K] int32                   the group of each input; any order with desc_act

    AWQ, 4 bits
    qweight [K, N / 8] int32            packed along N, in the order 0 2 4 6 1 3 5 7 from the lowest bits up
    qzeros  [G, N / 8] int32            likewise
    scales  [G, N]

weight[n, k] = (q[k, n] - zero[group of k, n]) * scale[group of k, n]
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


AWQ_PER_WORD = 8
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight neighbouring outputs is within its word."""
_AWQ_PARTS = ("qweight", "qzeros", "scales")


def find_awq(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    bits = "w_bit" if settings.has("w_bit") else "bits"
    if settings.integer(bits) != 4:
        raise settings.wrong(bits, "only 4 is supported")
    if settings.text("version", "gemm").lower() != "gemm":
        raise settings.wrong("version", "only gemm is supported")
    sizes = read_group_sizes(settings, "group_size", "q_group_size")
    return {f"{name}.weight": _awq_module(stored, name, sizes) for name in modules_with(stored, "qweight")}


def _awq_module(stored: Checkpoint, module: str, sizes: set[int]) -> PackedTensor:
    inputs, words = matrix_shape(stored, f"{module}.qweight")
    outputs = words * AWQ_PER_WORD
    groups = matrix_shape(stored, f"{module}.scales")[0]
    expect_shape(stored, f"{module}.scales", (groups, outputs))
    expect_shape(stored, f"{module}.qzeros", (groups, words))
    group = group_of_columns(stored, module, "", inputs, groups, sizes)

    def read(first: int, end: int) -> GroupedRows:
        around = slice(first // AWQ_PER_WORD, -(-end // AWQ_PER_WORD))
        inner = first - around.start * AWQ_PER_WORD
        integers, zeros = (
            _in_order(stored.read(f"{module}.{name}", (slice(None), around)))[:, inner : inner + end - first]
            for name in ("qweight", "qzeros")
        )
        scales = stored.read(f"{module}.scales", (slice(None), slice(first, end)))
        return GroupedRows(integers.t(), zeros.t(), scales.t())

    kind = stored.kind(f"{module}.scales")
    grouped = GroupedIntegers(4, group, groups, kind, read)
    return grouped_tensor((outputs, inputs), part_names(stored, module, _AWQ_PARTS), grouped)


def _in_order(packed: torch.Tensor) -> torch.Tensor:
    """[R, words] int32 -> [R, words * 8] uint8, outputs in order."""
    words = unpack_integers(packed, 4).view(packed.shape[0], -1, AWQ_PER_WORD)
    return words[:, :, list(AWQ_PLACES)].flatten(1)
