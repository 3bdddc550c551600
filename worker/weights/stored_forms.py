"""Matrices in few bits as a checkpoint stores them: which form holds a tensor exactly, and which of its rows
become which rows of a matrix.

Groups of a checkpoint become groups of one size, a multiple of 16 up to 128, of inputs that are neighbours.
Larger groups are divided, each part with the scale and the zero point of the whole; inputs of a group that
are no neighbours (act-order) become such by an order of the inputs.

A stored row is an output with all of its inputs. Of one tensor with all experts, [E, K, N], the rows are
those of all experts, one expert after the other, as GroupedIntegers count them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F

from kernels.api import Code, GroupedWords
from worker.layers.base import Weight
from worker.weights.loader import places_of
from worker.weights.source import GroupedIntegers, TensorSource

BITS = 4
_EXACT_SCALES = ("F16", "BF16", "F8_E8M0")
"""Kinds of scales of which the form for 4 bits keeps every bit."""
_CODES = {torch.int8: Code.INT8, torch.float8_e4m3fn: Code.E4M3}


class CodedRows(NamedTuple):
    """Some rows of a matrix in few bits. R: their number."""

    codes: torch.Tensor  # [R, K or more]: integers or floats of up to 8 bits, in the order of the groups
    scales: torch.Tensor  # [R, groups] float32
    zeros: torch.Tensor | None  # [R, groups] integers; None: there are none


@dataclass(frozen=True)
class HeldForm:
    """What stands for the values of a matrix, in which groups, and where rows come from."""

    code: Code
    group_size: int
    order: torch.Tensor | None = None  # [K] int64: which input comes where; None: as they stand
    read: Callable[[int, int], CodedRows] | None = None
    """From the first row and the one behind the last; None: values are rounded to the form."""
    bits: int = BITS  # of a stored integer
    groups: int = 0  # of the inputs, in 4 bits

    def of_inputs(self, first: int, end: int, count: int) -> "HeldForm | str":
        """Returns the form of inputs first .. end - 1 of so many, or why there is none: those of one group,
        or of whole groups that are neighbours."""
        read, size = self.read, self.group_size
        if read is None or (first, end) == (0, count):
            return self
        if self.order is not None:
            return "groups of inputs that are no neighbours, which ranks cannot divide"
        if size >= count and (end - first) % GroupedWords.smallest_group == 0:
            groups, size = slice(None), end - first
        elif first % size or (end % size and end < count):
            return f"groups of {size} inputs, of which a rank would have a part"
        else:
            groups = slice(first // size, -(-end // size))

        def of_rows(first_row: int, end_row: int) -> CodedRows:
            codes, scales, zeros = read(first_row, end_row)
            held = slice(first, first + size * -(-(end - first) // size))  # zeros may fill up the last group
            return CodedRows(codes[:, held], scales[:, groups], None if zeros is None else zeros[:, groups])

        number = len(range(self.groups)[groups])
        return replace(self, group_size=size, read=of_rows, groups=number)

    def has_inputs_of(self, other: "HeldForm") -> bool:
        """True if parts of one matrix may have these forms: groups have the same inputs in the same order."""
        if (self.code, self.group_size, self.groups) != (other.code, other.group_size, other.groups):
            return False
        if self.order is None or other.order is None:
            return self.order is other.order
        return torch.equal(self.order, other.order)


def no_kernel(checkpoint: TensorSource, name: str) -> str:
    """Returns the reason where no form holds a tensor."""
    return f"no kernel computes with {checkpoint.packing_of(name)} as it is"


def scaled_form(checkpoint: TensorSource, name: str) -> HeldForm | None:
    """Returns the form that holds values of 8 bits with scales; None where a tensor is stored otherwise."""
    stored = checkpoint.scaled(name)
    if stored is None:
        return None

    def read(first: int, end: int) -> CodedRows:
        return CodedRows(*stored.read(first, end), None)

    return HeldForm(_CODES[stored.dtype], stored.group_size, None, read)


def group_form(stored: GroupedIntegers) -> HeldForm | str:
    """Returns the form that holds integers or floats of 4 bits exactly, or why there is none."""
    if stored.bits > BITS:
        return f"integers of {stored.bits} bits"
    if stored.scale_kind not in _EXACT_SCALES:
        return f"scales in {stored.scale_kind}, of which the form for 4 bits keeps 16 bits"
    counts = torch.bincount(stored.group, minlength=stored.num_groups)
    used = counts.nonzero().flatten()
    sizes: list[int] = counts[used].tolist()
    size = _common_size(sizes)
    if size is None:
        odd = next(each for each in sizes if each % GroupedWords.smallest_group)
        return f"a group of {odd} inputs, no multiple of {GroupedWords.smallest_group}"
    sources = used.repeat_interleave(torch.tensor([-(-each // size) for each in sizes]))
    lacking = len(sources) * size - len(stored.group)
    in_order = bool((stored.group.diff() >= 0).all())
    order = None if in_order else stored.group.argsort(stable=True)

    def read(first: int, end: int) -> CodedRows:
        found = stored.read(first, end)
        integers = found.integers if order is None else found.integers[:, order]
        codes = F.pad(integers, (0, lacking)) if lacking else integers
        zeros = None if found.zeros is None else found.zeros[:, sources]
        return CodedRows(codes, found.scales.float()[:, sources], zeros)

    code = Code.E2M1 if stored.e2m1 else Code.INT4
    return HeldForm(code, size, order, read, bits=stored.bits, groups=len(sources))


def _common_size(sizes: list[int]) -> int | None:
    """Returns the largest size of groups that divides all of these but the last, which zeros may fill up."""
    least = GroupedWords.smallest_group
    divided = sizes[:-1] or [each for each in sizes if each % least == 0]
    candidates = range(GroupedWords.largest_group, 0, -least)
    return next((size for size in candidates if not any(each % size for each in divided)), None)


@dataclass(frozen=True)
class StoredRows:
    """Neighbouring rows of a stored weight."""

    first: int
    places: torch.Tensor  # [R] int64: the row of the matrix that each becomes; -1: none


def stored_inputs(weight: Weight) -> tuple[int, int, int]:
    """Returns the first input of a matrix [out, in], or one of experts, that a rank holds, the one behind the
    last, and how many there are."""
    if len(weight.shape) == 3:
        return 0, weight.shape[1], weight.shape[1]
    columns = weight.part[1] if len(weight.part) > 1 else slice(None)
    return *columns.indices(weight.shape[1])[:2], weight.shape[1]


def stored_rows(weight: Weight, inputs: int) -> StoredRows | None:
    """Returns the rows of a tensor that go to its target, with all inputs or those that a rank holds; None
    unless rows become rows. inputs: of the matrix, whose parameter the target is a view of."""
    if len(weight.shape) == 3:
        return _rows_of_expert(weight, inputs)
    if len(weight.shape) != 2 or weight.transposed:
        return None
    first, end, _ = stored_inputs(weight)
    if weight.target.stride() != (inputs, 1) or end - first != inputs:
        return None
    return _rows_of_part(weight, weight.part[0] if weight.part else slice(None), weight.shape[0], inputs)


def rows_to_round(weight: Weight, inputs: int) -> StoredRows:
    """Returns the outputs of a tensor of plain floats that go to its target, also where it is stored as
    [in, out]. inputs: of the matrix."""
    if weight.transposed:
        rows = weight.part[1] if len(weight.part) > 1 else slice(None)
        return _rows_of_part(weight, rows, weight.shape[1], inputs)
    found = stored_rows(weight, inputs)
    assert found is not None
    return found


def _rows_of_part(weight: Weight, rows: slice, count: int, inputs: int) -> StoredRows:
    """Returns some of so many outputs, in the order of the weight, from the target's first row on."""
    begin, end, _ = rows.indices(count)
    places, first = places_of(weight.order, end - begin), weight.target.storage_offset() // inputs
    return StoredRows(begin, torch.where(places < 0, -1, places + first))


def _rows_of_expert(weight: Weight, inputs: int) -> StoredRows | None:
    """Returns rows of one expert of [E, K, N]. The target is [1, K, N], or has the outputs in two
    dimensions."""
    count, stored_inputs, outputs = weight.shape
    expert, columns, rows = (*weight.part, slice(None), slice(None))[:3]
    (first, end, _), target = expert.indices(count), weight.target
    begin, last, _ = rows.indices(outputs)
    whole = columns.indices(stored_inputs)[:2] == (0, inputs) and end == first + 1
    if weight.order or not whole or target.shape[:2] != (1, inputs) or target.stride(1) != 1:
        return None
    places = torch.tensor([target.storage_offset()])
    for size, stride in zip(target.shape[2:], target.stride()[2:], strict=True):
        places = (places[:, None] + stride * torch.arange(size)).flatten()
    if len(places) != last - begin or (places % inputs).any():
        return None
    return StoredRows(first * outputs + begin, places // inputs)
