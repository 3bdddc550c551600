"""AWQ: integers of 4 bits with a scale and a zero point per group of inputs and output.

qweight [K, N / 8] int32    packed along N, in the order 0 2 4 6 1 3 5 7 from the lowest bits up
qzeros  [G, N / 8] int32    likewise
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

PER_WORD = 8
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight neighbouring outputs is within its word."""
_PARTS = ("qweight", "qzeros", "scales")


def find_awq(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    bits = "w_bit" if settings.has("w_bit") else "bits"
    if settings.integer(bits) != 4:
        raise settings.wrong(bits, "only 4 is supported")
    if settings.text("version", "gemm").lower() != "gemm":
        raise settings.wrong("version", "only gemm is supported")
    sizes = read_group_sizes(settings, "group_size", "q_group_size")
    return {f"{name}.weight": _module(stored, name, sizes) for name in modules_with(stored, "qweight")}


def _module(stored: Checkpoint, module: str, sizes: set[int]) -> PackedTensor:
    inputs, words = matrix_shape(stored, f"{module}.qweight")
    outputs = words * PER_WORD
    groups = matrix_shape(stored, f"{module}.scales")[0]
    expect_shape(stored, f"{module}.scales", (groups, outputs))
    expect_shape(stored, f"{module}.qzeros", (groups, words))
    group = group_of_columns(stored, module, "", inputs, groups, sizes)

    def read(first: int, end: int) -> GroupedRows:
        around = slice(first // PER_WORD, -(-end // PER_WORD))
        inner = first - around.start * PER_WORD
        integers, zeros = (
            _in_order(stored.read(f"{module}.{name}", (slice(None), around)))[:, inner : inner + end - first]
            for name in ("qweight", "qzeros")
        )
        scales = stored.read(f"{module}.scales", (slice(None), slice(first, end)))
        return GroupedRows(integers.t(), zeros.t(), scales.t())

    kind = stored.kind(f"{module}.scales")
    grouped = GroupedIntegers(4, group, groups, kind, read)
    return grouped_tensor((outputs, inputs), part_names(stored, module, _PARTS), grouped)


def _in_order(packed: torch.Tensor) -> torch.Tensor:
    """[R, words] int32 -> [R, words * 8] uint8, outputs in order."""
    words = unpack_integers(packed, 4).view(packed.shape[0], -1, PER_WORD)
    return words[:, :, list(PLACES)].flatten(1)
