"""Row layers: the leaves of their products."""

import pytest
import torch

from kernels.api import GroupedWords, WeightForms
from tests.kernels.references.matmul import tree_sum
from tests.kernels.tolerances import random
from tests.worker.ranks import SilentRank
from worker.layers.linear import RowLinear
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
    ("inputs", "units", "leaves"), [(1024, None, 4), (1024, 2, 2), (1024, 3, 1), (96, None, 1), (2048, 16, 8)]
)
def test_leaves_follow_from_inputs_and_units(inputs: int, units: int | None, leaves: int):
    assert layer(inputs, units).leaves(1) == leaves


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_has_its_share_of_the_leaves(size: int):
    for rank in range(size):
        place = Placement(torch.bfloat16, CPU, SilentRank(rank, size))
        assert layer(1024, place=place).leaves(1) == 4 // size


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_a_packed_product_is_a_tree_of_leaves(quantization: str):
    row, x = layer(1024), random(9, 1024, dtype=torch.bfloat16, seed=5)
    form = WeightForms.of(quantization).matrix
    parts = zip(x.chunk(4, 1), row.weight.chunk(4, 1), strict=True)
    sums = torch.stack([form(of_w.contiguous(), None).multiply(of_x, True) for of_x, of_w in parts])
    assert row.bias is not None
    expected = tree_sum(sums) + row.bias.float()
    row.pack(WeightForms.of(quantization))
    assert torch.equal(row.product(x, wide=True), expected)


@pytest.mark.cpu_kernels
def test_int4_has_leaves_of_whole_groups():
    """So a rank that holds one leaf divides it as all ranks do."""
    for inputs, depth in ((1024, 2), (704, 0), (1536, 2), (2816, 1)):
        row = layer(inputs)
        row.pack(WeightForms.of("int4"))
        assert row.packed is not None and row.packed.depth == depth


@pytest.mark.cpu_kernels
def test_groups_of_a_checkpoint_stay_in_one_leaf():
    """Leaves of 352 inputs have no whole groups of 64; permuted inputs are one leaf."""
    for group_size, order, depth in ((32, None, 1), (64, None, 0), (32, torch.arange(704), 0)):
        row = layer(704)
        words = GroupedWords.empty((60, 704), group_size, 704 // group_size, order)
        row.method = GroupedMethod(words)
        row.pack(WeightForms.of(""))
        assert row.packed is not None and row.packed.depth == depth
