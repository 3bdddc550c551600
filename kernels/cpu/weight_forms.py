"""In how many bits a model's matrices are held on a CPU, as --quantization says it.

    ""       16 bits, in 12 where that loses nothing; float32, in 16 where that loses nothing
    int8     8 bits, the head too (kernels.cpu.matmul.int8)
    int4     4 bits with two levels of scales (kernels.cpu.matmul.groups), the head in 8

With plain_head the head is held as if nothing were quantized. An embedding that only looks up always is.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from kernels.cpu.matmul.compact.weight import compact_weight
from kernels.cpu.matmul.groups.weight import SIZES, round_to_two_levels
from kernels.cpu.matmul.int8 import QuantizedWeight, quantize_weight
from kernels.cpu.matmul.matrix import PackedMatrix, PackedTable
from kernels.cpu.matmul.packed import narrow_weight
from kernels.cpu.matmul.records import PART
from kernels.cpu.runtime.arena import Arena
from kernels.ops.layers.leaves import UNDIVIDED, count_leaves


class Pack(Protocol):
    """Makes a form of a weight [N, K] with its bias [N] or None, as a sum of so many leaves
    (kernels.ops.layers.leaves)."""

    def __call__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, leaves: int = 1
    ) -> PackedMatrix: ...


class PackTable(Protocol):
    """The same, of a weight whose rows can be looked up."""

    def __call__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, leaves: int = 1
    ) -> PackedTable: ...


class PackShare(Protocol):
    """Makes the form of a rank's inputs of a matrix, [N, K / ranks]. largest: [N] float32, the largest
    absolute values of its rows with all inputs."""

    def __call__(self, weight: torch.Tensor, *, largest: torch.Tensor) -> QuantizedWeight: ...


def exact_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, arena: Arena | None = None, leaves: int = 1
) -> PackedTable:
    """In fewer bits where that loses nothing. weight: [N, K] bfloat16 or float32; bias: [N] or None. arena:
    of the model."""
    narrow = narrow_weight if weight.dtype == torch.float32 else compact_weight
    return narrow(weight, bias, arena, leaves)


@dataclass(frozen=True)
class WeightForms:
    """What becomes of a model's matrices."""

    matrix: Pack
    head: PackTable
    exact: PackTable
    """Of matrices that are never rounded."""
    group_size: int = 1  # a matrix needs as many inputs
    leaf_multiple: int = 1
    """Leaves of a matrix have a multiple of so many inputs: those of the largest group, so that each leaf is
    divided alike on any rank; UNDIVIDED, where sums are exact in any order."""
    share: PackShare | None = None
    """Of a rank's inputs of a matrix whose sums are exact in any order; None: they are not."""

    count_leaves = staticmethod(count_leaves)

    @staticmethod
    def of(quantization: str, plain_head: bool = False, arena: Arena | None = None) -> "WeightForms":
        """quantization, plain_head: as in Initialize. arena: of the model; None: none is in one."""
        exact, in_8_bits = partial(exact_weight, arena=arena), partial(quantize_weight, arena=arena)
        head: PackTable = in_8_bits if quantization and not plain_head else exact
        if quantization == "int4":
            return WeightForms(partial(round_to_two_levels, arena=arena), head, exact, PART, max(SIZES))
        if quantization == "int8":
            share = partial(quantize_weight, bias=None, arena=arena)
            return WeightForms(in_8_bits, head, exact, leaf_multiple=UNDIVIDED, share=share)
        return WeightForms(exact, head, exact)
