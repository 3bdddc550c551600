"""Products by packed weights against float64."""

import pytest
import torch

from kernels.cpu.matmul.packed import pack_weight
from kernels.cpu.runtime.arena import Arena
from tests.kernels.products import SHAPES, inputs
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels


@pytest.mark.parametrize("tokens", [*range(1, 18), 40, 255, 259])
@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_packed(in_features: int, out_features: int, tokens: int):
    """Every tile, and mixtures of them; more tokens than a chunk. Products of bfloat16 are exact in
    float32, so that only its sums round: 1e-6 per result, and bfloat16 at the end."""
    x, weight, bias = inputs(tokens, in_features, out_features, torch.bfloat16)
    packed = pack_weight(weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    assert_close(packed.multiply(x, wide=True), exact, 5e-6, 5e-6)
    assert_close(packed.multiply(x), exact, 1e-6, 2**-8)
    without = pack_weight(weight, None).multiply(x, wide=True)
    assert_close(without, x.double() @ weight.double().T, 5e-6, 5e-6)


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_company_changes_nothing(in_features: int, out_features: int):
    """A token's result is bitwise the same alone and among any number of others."""
    x, weight, bias = inputs(300, in_features, out_features, torch.bfloat16)
    packed = pack_weight(weight, bias)
    for wide in (True, False):
        together = packed.multiply(x, wide)
        for first, last in [(0, 1), (7, 9), (100, 103), (255, 258), (20, 60), (30, 61), (299, 300)]:
            assert torch.equal(packed.multiply(x[first:last], wide), together[first:last])


@pytest.mark.parametrize(("in_features", "out_features"), [(1, 1), (33, 49), (96, 100), (700, 20)])
def test_float32(in_features: int, out_features: int):
    """Sums round once per product, in the order of k: the same bits among any number of tokens. Rows come
    back, also from a matrix that is packed where it lies."""
    x, weight, bias = inputs(270, in_features, out_features, torch.float32)
    arena = Arena()
    own = arena.matrix(out_features, in_features, torch.float32).copy_(weight)
    packed, in_place = pack_weight(weight, bias), pack_weight(own, bias, arena)
    assert torch.equal(packed.words, in_place.words) and in_place.words.data_ptr() == own.data_ptr()
    together = packed.multiply(x)
    assert_close(together, x.double() @ weight.double().T + bias.double(), 5e-6, 5e-6)
    for first, last in [
        (0, 1),
        (7, 9),
        (20, 23),
        (30, 35),
        (100, 107),
        (255, 258),
        (20, 60),
        (20, 46),
        (20, 51),
        (269, 270),
    ]:
        assert torch.equal(packed.multiply(x[first:last]), together[first:last])
    indexes = torch.tensor([out_features - 1, 0, out_features // 2])
    assert torch.equal(packed.rows(indexes), weight[indexes])


def test_nothing_is_written_past_the_result():
    """The last block of columns is stored under a mask: neighbours in memory keep their values."""
    x, weight, bias = inputs(3, 8, 50, torch.bfloat16)
    packed = pack_weight(weight, bias)
    for dtype in (torch.float32, torch.bfloat16):
        memory = torch.full((3 * 50 + 64,), 7.0, dtype=dtype)
        packed.team.run_one(packed.product, 3, packed.record(x, memory), 0)
        assert torch.equal(memory[:150].view(3, 50), packed.multiply(x, wide=dtype == torch.float32))
        assert (memory[150:] == 7).all()


def test_strided_and_empty_inputs():
    x, weight, bias = inputs(6, 40, 50, torch.bfloat16)
    packed = pack_weight(weight, bias)
    assert torch.equal(packed.multiply(x[::2]), packed.multiply(x)[::2])
    assert packed.multiply(x[:0]).shape == (0, 50)


def test_a_column_alone_is_not_spoilt_by_padding():
    """Infinite inputs times the zeros of padding would be NaN: padding must stay in its own columns."""
    x, weight, _ = inputs(2, 7, 3, torch.bfloat16)
    x[0, 3] = torch.inf
    result = pack_weight(weight, None).multiply(x)
    assert result[0].isinf().all()
    assert result[1].isfinite().all()


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_rows_come_back(in_features: int, out_features: int):
    """What a tied embedding looks up is what was packed."""
    _, weight, bias = inputs(1, in_features, out_features, torch.bfloat16)
    indexes = torch.tensor([out_features - 1, 0, out_features // 2, 0])
    assert torch.equal(pack_weight(weight, bias).rows(indexes), weight[indexes])
    assert pack_weight(weight, bias).rows(indexes[:0]).shape == (0, in_features)


@pytest.mark.parametrize(("in_features", "out_features"), [*SHAPES, (8192, 100)])
def test_packed_where_it_lies(in_features: int, out_features: int):
    """The same as a copy, in the memory of the weight where K is even; its neighbours keep their values."""
    arena = Arena()
    before, weight, after = (arena.matrix(n, in_features, torch.bfloat16) for n in (1, out_features, 2))
    for neighbour in (before, after):
        neighbour.fill_(7)
    original = weight.copy_(inputs(1, in_features, out_features, torch.bfloat16)[1]).clone()
    packed = pack_weight(weight, None, arena)
    assert torch.equal(packed.words, pack_weight(original, None).words)
    assert (packed.words.data_ptr() == weight.data_ptr()) == (in_features % 2 == 0)
    assert (before == 7).all() and (after == 7).all()
    assert arena.take_whole(weight) is None or in_features % 2, "it cannot be packed again"
