"""Row layers: the leaves of their products."""

import pytest
import torch

from kernels.api import GroupedWords, SumOrder, WeightForms
from tests.kernels.references.matmul import tree_sum
from tests.kernels.tolerances import random
from tests.worker.ranks import SilentRank
from worker.layers.embedding import VocabEmbedding
from worker.layers.linear import RowLinear, qkv_linear
from worker.layers.matrix import GroupedMethod
from worker.parallel import Placement

CPU = torch.device("cpu")
PLACE = Placement(torch.bfloat16, CPU)


def layer(inputs: int, units: int | None = None, place: Placement = PLACE) -> RowLinear:
    """With a bias, and values that depend on the shape alone."""
    row = RowLinear(inputs, 60, True, place, units=units)
    for seed, parameter in enumerate(row.parameters()):
        parameter.copy_(random(*parameter.shape, dtype=torch.bfloat16, seed=seed))
    return row


@pytest.mark.parametrize(
    ("inputs", "units", "leaves"), [(4096, None, 4), (4096, 2, 2), (4096, 3, 1), (96, None, 1), (8192, 16, 8)]
)
def test_leaves_follow_from_inputs_and_units(inputs: int, units: int | None, leaves: int):
    assert layer(inputs, units).leaves(1) == leaves


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_has_its_share_of_the_leaves(size: int):
    for rank in range(size):
        place = Placement(torch.bfloat16, CPU, SilentRank(rank, size))
        assert layer(4096, place=place).leaves(1) == 4 // size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_order_of_sums_is_that_of_one_rank(size: int):
    """On a CUDA device: the leaves of a rank, and of columns the rows of the whole matrix."""
    place = Placement(torch.bfloat16, CPU, SilentRank(1 % size, size))
    assert layer(4096, place=place).sum_order == SumOrder(60, 4 // size)
    qkv = qkv_linear(64, 8, 2, 16, False, place)
    assert qkv.sum_order == SumOrder(192) and len(qkv.weight) == {1: 192, 2: 96, 4: 64}[size]
    assert VocabEmbedding(4096, 64, place).sum_order == SumOrder(4096)


def test_what_ranks_do_not_divide_is_a_chain():
    assert layer(96).sum_order == SumOrder(60, 0)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("quantization", ["", "int4"])
def test_a_packed_product_is_a_tree_of_leaves(quantization: str, short_leaves: None):
    row, x = layer(1024), random(9, 1024, dtype=torch.bfloat16, seed=5)
    form = WeightForms.of(quantization).matrix
    parts = zip(x.chunk(4, 1), row.weight.chunk(4, 1), strict=True)
    sums = torch.stack([form(of_w.contiguous(), None).multiply(of_x, True) for of_x, of_w in parts])
    assert row.bias is not None
    expected = tree_sum(sums) + row.bias.float()
    row.pack(WeightForms.of(quantization))
    assert torch.equal(row.product(x, wide=True), expected)


@pytest.mark.cpu_kernels
def test_integers_of_8_bits_are_one_leaf():
    """Their sums are exact in any order."""
    row = layer(8192)
    assert row.most_ranks(WeightForms.of("")) == 8
    row.pack(WeightForms.of("int8"))
    assert row.packed is not None and row.packed.depth == 0


@pytest.mark.cpu_kernels
def test_int4_has_leaves_of_whole_groups(short_leaves: None):
    """So a rank that holds one leaf divides it as all ranks do."""
    for inputs, depth in ((1024, 2), (704, 0), (1536, 2), (2816, 1)):
        row = layer(inputs)
        row.pack(WeightForms.of("int4"))
        assert row.packed is not None and row.packed.depth == depth


@pytest.mark.cpu_kernels
def test_groups_of_a_checkpoint_stay_in_one_leaf(short_leaves: None):
    """Leaves of 352 inputs have no whole groups of 64; permuted inputs are one leaf."""
    for group_size, order, depth in ((32, None, 1), (64, None, 0), (32, torch.arange(704), 0)):
        row = layer(704)
        words = GroupedWords.empty((60, 704), group_size, 704 // group_size, order)
        row.method = GroupedMethod(words)
        row.pack(WeightForms.of(""))
        assert row.packed is not None and row.packed.depth == depth
