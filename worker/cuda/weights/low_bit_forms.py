"""In which form of kernels.triton.matmul.low_bit_weight a tensor of a checkpoint is held on a CUDA device.

Integers of 4 bits or fewer and floats of 4 bits, in groups of 32 inputs or a multiple of it, keep what is
stored, and so do values of 8 bits with a scale per output or per group of inputs. With --quantization values
are rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.cpu.matmul.groups.e2m1 import MIDDLE
from kernels.triton.matmul.low_bit_weight import Code, round_to_int4, round_to_int8
from worker.layers.base import Weight
from worker.weights.loader import places_of
from worker.weights.own_bits.group_form import group_form
from worker.weights.own_bits.stored_rows import StoredRows, stored_rows
from worker.weights.source import GroupedIntegers, ScaledValues, TensorSource

_CODES = {torch.int8: Code.INT8, torch.float8_e4m3fn: Code.E4M3}


class CodedRows(NamedTuple):
    """Some rows of a weight, as LowBitWeight.put() takes them."""

    codes: torch.Tensor  # [R, K or more]
    scales: torch.Tensor  # [R, groups] float32
    zeros: torch.Tensor | None  # [R, groups]


@dataclass(frozen=True)
class LowBitForm:
    """A code, its groups, and where rows come from."""

    code: Code
    group_size: int
    order: torch.Tensor | None = None  # [K] int64: which input comes where; None: as they stand
    read: Callable[[int, int], CodedRows] | None = None  # from the first row and the one behind the last
    rounded: Callable[[torch.Tensor], CodedRows] | None = None  # from values [R, K], in place of `read`

    def has_inputs_of(self, other: "LowBitForm") -> bool:
        """True if parts of one matrix may have these forms."""
        if (self.code, self.group_size) != (other.code, other.group_size):
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)


def rounding_form(quantization: str) -> LowBitForm:
    """Returns the form that values are rounded to. quantization: as in Initialize, not empty."""
    if quantization == "int8":
        return LowBitForm(Code.INT8, 1 << 62, rounded=lambda rows: CodedRows(*round_to_int8(rows), None))
    assert quantization == "int4-g32"
    return LowBitForm(Code.INT4, 32, rounded=lambda rows: CodedRows(*round_to_int4(rows, 32)))


def stored_form(checkpoint: TensorSource, name: str) -> LowBitForm | str:
    """Returns the form that holds a packed tensor exactly, or why there is none."""
    grouped, scaled = checkpoint.grouped(name), checkpoint.scaled(name)
    if grouped is not None:
        return _integers(grouped)
    if scaled is not None:
        return _scaled(scaled)
    return f"no kernel computes with {checkpoint.packing_of(name)} as it is"


def _integers(stored: GroupedIntegers) -> LowBitForm | str:
    code, form = Code.E2M1 if stored.e2m1 else Code.INT4, group_form(stored)
    if isinstance(form, str):
        return form
    if form.size % code.least_group:
        return f"groups of {form.size} inputs, no multiple of {code.least_group}"

    def read(first: int, end: int) -> CodedRows:
        found = form.arranged(stored.read(first, end))
        if stored.e2m1:
            assert bool((found.zeros == MIDDLE).all())
            return CodedRows(found.integers, found.scales, None)
        return CodedRows(found.integers, found.scales, found.zeros)

    return LowBitForm(code, form.size, form.order, read)


def _scaled(stored: ScaledValues) -> LowBitForm | str:
    code = _CODES[stored.dtype]

    def read(first: int, end: int) -> CodedRows:
        found = stored.read(first, end)
        return CodedRows(found.values, found.scales, None)

    return LowBitForm(code, stored.group_size, None, read)


def rows_to_round(weight: Weight, inputs: int) -> StoredRows:
    """Returns the outputs of a tensor of plain floats that go to its target, also where it is stored as
    [in, out]. inputs: of the matrix."""
    if not weight.transposed:
        found = stored_rows(weight, inputs)
        assert found is not None
        return found
    rows = weight.part[1] if len(weight.part) > 1 else slice(None)
    begin, end, _ = rows.indices(weight.shape[1])
    places, first = places_of(weight.order, end - begin), weight.target.storage_offset() // inputs
    return StoredRows(begin, torch.where(places < 0, -1, places + first))
