"""Which stored rows of a weight become which rows of a matrix.

A stored row is an output with all of its inputs. Of one tensor with all experts, [E, K, N], the rows are
those of all experts, one expert after the other, as GroupedIntegers count them.
"""

from dataclasses import dataclass

import torch

from worker.layers.base import Weight
from worker.weights.loader import places_of


@dataclass(frozen=True)
class StoredRows:
    """Neighbouring rows of a stored weight."""

    first: int
    places: torch.Tensor  # [R] int64: the row of the matrix that each becomes; -1: none


def stored_rows(weight: Weight, inputs: int) -> StoredRows | None:
    """Returns the rows of a tensor that go to its target; None unless rows become rows. inputs: of the
    matrix, whose parameter the target is a view of."""
    if len(weight.shape) == 2:
        return _of_matrix(weight, inputs)
    return _of_expert(weight, inputs) if len(weight.shape) == 3 else None


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


def _of_matrix(weight: Weight, inputs: int) -> StoredRows | None:
    """Of [N, K]."""
    columns = weight.part[1] if len(weight.part) > 1 else slice(None)
    whole = columns.indices(weight.shape[1])[:2] == (0, inputs)
    if weight.transposed or weight.target.stride() != (inputs, 1) or not whole:
        return None
    rows = weight.part[0] if weight.part else slice(None)
    begin, end, _ = rows.indices(weight.shape[0])
    places, first = places_of(weight.order, end - begin), weight.target.storage_offset() // inputs
    return StoredRows(begin, torch.where(places < 0, -1, places + first))


def _of_expert(weight: Weight, inputs: int) -> StoredRows | None:
    """Of one expert of [E, K, N]. The target is [1, K, N], or has the outputs in two dimensions."""
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
