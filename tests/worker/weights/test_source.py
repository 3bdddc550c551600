"""What a source of tensors says of itself, and what integers in groups stand for."""

import pytest
import torch

from kernels.api import Code
from worker.weights.source import GroupedIntegers, GroupedRows, TensorSource

SHAPES = {"norm": (4,), "b.matrix": (2, 3), "a.matrix": (3, 2), "scalar": ()}
DTYPES = {"norm": torch.float64, "b.matrix": torch.float16, "a.matrix": torch.bfloat16}


class Source(TensorSource):
    """Some of the tensors above, which hold nothing."""

    def __init__(self, *names: str) -> None:
        self._names, self.is_closed = list(names), False

    def close(self) -> None:
        self.is_closed = True

    def names(self) -> list[str]:
        return self._names

    def file_of(self, name: str) -> str:
        return "file"

    def shape(self, name: str) -> tuple[int, ...]:
        return SHAPES[name]

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[name]

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        return torch.zeros(SHAPES[name])[part or ...]


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (["norm", "b.matrix", "a.matrix"], torch.bfloat16),
        (["norm", "b.matrix"], torch.float16),
        (["norm"], torch.float32),
        ([], torch.float32),
    ],
)
def test_the_main_dtype_is_that_of_the_first_matrix(names: list[str], dtype: torch.dtype):
    """By name, wherever it stands; norms may be wider."""
    assert Source(*names).main_dtype() == dtype


def test_a_source_of_plain_floats_packs_nothing():
    source = Source("norm", "scalar")
    assert "norm" in source and "a.matrix" not in source and 3 not in source
    assert (source.packing(), source.packing_of("norm"), source.stored_bytes()) == ("", "", 0)
    assert source.grouped("norm") is None and source.scaled("norm") is None


def test_a_source_is_closed_behind_its_block():
    """After an exception, too, which goes on."""
    source = Source()
    with source as entered:
        assert entered is source and not source.is_closed
    assert source.is_closed
    failing = Source()
    with pytest.raises(KeyError), failing:
        raise KeyError
    assert failing.is_closed


@pytest.mark.parametrize("e2m1", [False, True])
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
def test_integers_stand_for_values(e2m1: bool, scale_dtype: torch.dtype):
    """(integer - zero) * scale of the group of each input; groups may lie anywhere. Some rows of all."""
    group = torch.tensor([1, 0, 1, 2, 0])
    integers = torch.arange(20).remainder(16).to(torch.uint8).view(4, 5)
    zeros = torch.arange(12).view(4, 3).to(torch.uint8)
    scales = ((torch.arange(12) + 1) / 4).view(4, 3).to(scale_dtype)
    asked = []

    def read(first: int, end: int) -> GroupedRows:
        asked.append((first, end))
        return GroupedRows(integers[first:end], None if e2m1 else zeros[first:end], scales[first:end])

    weight = GroupedIntegers(4, group, 3, "F16", read, e2m1)
    found = weight.unpack(1, 3)
    assert asked == [(1, 3)] and found.dtype == torch.float32 and found.shape == (2, 5)
    stands_for = Code.doubled(integers) if e2m1 else integers
    for row in (1, 2):
        for k, g in enumerate(group.tolist()):
            zero = 0 if e2m1 else int(zeros[row, g])
            value = (int(stands_for[row, k]) - zero) * float(scales[row, g])
            assert found[row - 1, k].item() == value
