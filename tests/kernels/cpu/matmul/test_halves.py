"""Weights of float32 that float16 holds: half of the bytes, and the bits of the product with all of them."""

import pytest
import torch

from kernels.cpu.matmul.packed import PackedWeight, narrow_weight, pack_weight
from kernels.cpu.matmul.records import LinearRecord, PackedRowsRecord
from kernels.cpu.runtime.arena import Arena
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

SHAPES = [(1, 1), (7, 49), (40, 47), (64, 96), (131, 100), (577, 33)]
"""(K, N): strips and blocks that end early."""
EDGES = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, 1.0]


def matrix(in_features: int, out_features: int) -> torch.Tensor:
    """[N, K] float32 of float16 values, denormal and large ones among them."""
    weight = random(out_features, in_features, dtype=torch.float32, seed=1)
    weight.view(-1)[: len(EDGES)] = torch.tensor(EDGES)[: weight.numel()]
    return weight.half().float()


def narrow(
    weight: torch.Tensor, bias: torch.Tensor | None = None, arena: Arena | None = None
) -> PackedWeight:
    result = narrow_weight(weight, bias, arena)
    assert result.words.dtype == torch.float16
    return result


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 15, 16, 17, 33, 259])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_the_bits_of_the_packed_product(in_features: int, out_features: int, tokens: int) -> None:
    """Of rows that widen while they multiply, and of many, before and behind a chunk's end."""
    weight, bias = matrix(in_features, out_features), random(out_features, dtype=torch.float32, seed=2)
    x = random(tokens, in_features, dtype=torch.float32)
    expected = pack_weight(weight.clone(), bias).multiply(x)
    assert torch.equal(narrow(weight, bias).multiply(x), expected)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_rows_come_back(in_features: int, out_features: int) -> None:
    weight = matrix(in_features, out_features)
    indexes = torch.tensor([0, out_features - 1, out_features // 2])
    rows = narrow(weight.clone()).rows(indexes)
    assert torch.equal(rows.view(torch.int32), weight[indexes].view(torch.int32))


@pytest.mark.parametrize("value", [1 / 3, 65536.0, 1e-9, 1 + 2**-11])
def test_one_value_that_is_no_half_keeps_all_bits(value: float) -> None:
    weight = matrix(64, 60)
    weight[50, 3] = value
    assert isinstance(narrow_weight(weight, None), PackedWeight)


def test_it_moves_in_its_arena() -> None:
    """Half of the bytes, from where the first one lay on; what is between them stays."""
    arena = Arena()
    weights = [matrix(64, 480), random(100, 64, dtype=torch.float32), matrix(64, 960)]
    tensors = [arena.matrix(*weight.shape, torch.float32) for weight in weights]
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor.copy_(weight)
    begins = [tensor.data_ptr() for tensor in tensors]
    first, last = (narrow(tensors[i], None, arena) for i in (0, 2))
    arena.close_hole()
    assert first.words.data_ptr() == begins[0] and last.words.data_ptr() == begins[2]
    assert first.nbytes < 2.1 * weights[0].numel() and torch.equal(tensors[1], weights[1])
    for weight, narrowed in ((weights[0], first), (weights[2], last)):
        assert torch.equal(narrowed.rows(torch.arange(len(weight))), weight)


@pytest.mark.parametrize("tokens", [3, 17])
def test_python_gives_the_same(tokens: int) -> None:
    from kernels.cpu.matmul.gemm_float32 import linear_halves, rows_of_halves
    from kernels.cpu.runtime.thread_pool import TEAM

    packed = narrow(matrix(6, 50), random(50, dtype=torch.float32, seed=2))
    x, both = random(tokens, 6, dtype=torch.float32), torch.zeros(2, tokens, 50)
    records: list[LinearRecord] = [packed.record(x, out) for out in both]
    TEAM.run_one(linear_halves, tokens, records[0], 0)
    records[1].rows = tokens
    linear_halves.reference(records[1], 0, 4, 0)
    assert torch.equal(both[0], both[1]) and both.any()
    indexes, looked_up = torch.tensor([49, 3]), torch.zeros(2, 6)
    record: PackedRowsRecord = packed.rows_record(indexes.data_ptr(), looked_up.data_ptr())
    rows_of_halves.reference(record, 0, 2, 0)
    assert torch.equal(looked_up, packed.rows(indexes))
