"""Memory for weights: aligned zeros, side by side, given back where it is left over."""

import mmap

import pytest
import torch

from kernels.cpu.runtime import arena as module
from kernels.cpu.runtime.arena import ALIGNMENT, MATRIX_ROWS, Arena, zeros

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(0,), (1,), (3, 5), (2, 0, 4), (1000, 1000)])
def test_zeros(size: tuple[int, ...], dtype: torch.dtype):
    tensor = zeros(size, dtype)
    assert tensor.shape == size and tensor.dtype == dtype and tensor.is_contiguous()
    assert not tensor.any() and (not tensor.numel() or tensor.data_ptr() % ALIGNMENT == 0)


def test_tensors_lie_side_by_side():
    """Each aligned, none over another one."""
    arena = Arena()
    tensors = [
        arena.zeros((3, 5), torch.bfloat16),
        arena.zeros((7,), torch.float32),
        arena.zeros((1,), torch.int8),
    ]
    for number, tensor in enumerate(tensors):
        assert tensor.data_ptr() % ALIGNMENT == 0
        tensor.fill_(number + 1)
    assert [tensor.unique().item() for tensor in tensors] == [1, 2, 3]
    assert tensors[2].data_ptr() - tensors[0].data_ptr() == 2 * ALIGNMENT


def test_more_than_a_piece_has(monkeypatch: pytest.MonkeyPatch):
    """A new piece is made, as large as it must be; the old one stays as it is."""
    monkeypatch.setattr(module, "CHUNK", 256)
    arena = Arena()
    first = arena.zeros((200,), torch.int8).fill_(1)
    second = arena.zeros((1000,), torch.int8).fill_(2)
    third = arena.zeros((64,), torch.int8)
    assert (first == 1).all() and (second == 2).all() and not third.any()


def test_memory_that_is_given_is_used_first():
    given = zeros((4 * ALIGNMENT,), torch.uint8)
    arena = Arena(given)
    assert arena.unused_address == given.data_ptr()
    arena.zeros((ALIGNMENT + 1,), torch.int8).fill_(3)
    assert given[: ALIGNMENT + 1].eq(3).all() and not given[ALIGNMENT + 1 :].any()
    assert arena.unused_address == given.data_ptr() + 2 * ALIGNMENT


@pytest.mark.parametrize("rows", [1, MATRIX_ROWS - 1, MATRIX_ROWS, MATRIX_ROWS + 1])
def test_a_matrix_has_whole_blocks_behind_it(rows: int):
    arena = Arena()
    matrix = arena.matrix(rows, 10, torch.bfloat16).fill_(1)
    whole = arena.take_whole(matrix)
    assert matrix.shape == (rows, 10) and whole is not None
    assert whole.data_ptr() == matrix.data_ptr() and len(whole) % MATRIX_ROWS == 0
    assert (whole[:rows] == 1).all() and not whole[rows:].any()
    assert arena.take_whole(matrix) is None, "it is given up once"


def test_smaller_tensors_close_up():
    """What becomes smaller moves to the front of the hole that its predecessors have left."""
    arena = Arena()
    large = [arena.zeros((4 * ALIGNMENT,), torch.uint8) for _ in range(3)]
    small = [arena.smaller(tensor, (ALIGNMENT,), torch.uint8) for tensor in large]
    begin = large[0].data_ptr()
    assert [tensor.data_ptr() - begin for tensor in small] == [0, ALIGNMENT, 2 * ALIGNMENT]
    arena.close_hole()
    other = arena.zeros((ALIGNMENT,), torch.uint8)
    assert arena.smaller(other, (1,), torch.uint8).data_ptr() == other.data_ptr()


def test_what_is_left_of_a_hole_reads_as_zeros():
    """Its whole pages went back to the system; the end of the last one is not a whole page."""
    arena = Arena()
    large = arena.zeros((1 << 20,), torch.uint8).fill_(9)
    kept = arena.smaller(large, (100,), torch.uint8).fill_(1)
    arena.close_hole()
    assert (kept == 1).all() and not large[1 << 16 : -mmap.PAGESIZE].any()
