"""The sorting of pairs by expert on a CPU, and the products of all experts as one operation."""

import ctypes

import pytest
import torch

from kernels.cpu.elementwise.records import GatherRecord
from kernels.cpu.experts.records import DispatchRecord, Group, GroupedRecord, Segment
from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from kernels.cpu.program.experts import ProductGroup
from kernels.cpu_ops import CpuOps
from kernels.ops.experts.dispatch import dispatch
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
EXPERTS = 5
CHOICES = {
    "one token": [[3]],
    "one expert for all": [[2], [2], [2]],
    "the last and the first": [[4, 0], [0, 4]],
    "all of them": [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]],
    "some without tokens": [[3, 1], [1, 3], [3, 1], [1, 0], [3, 0]],
}


class Sorted:
    """Pairs that the operation has sorted, with two groups of products: x to `wide`, and that to `out`."""

    def __init__(self, experts: torch.Tensor, weights: list[list[PackedWeight]], x: torch.Tensor) -> None:
        tokens, top_k = experts.shape
        self.kernels, pairs = CpuOps(x.dtype), tokens * top_k
        self.pair_tokens, self.places = torch.full((pairs,), -1), torch.full((tokens, top_k), -1)
        self.units, self.starts = torch.full((2,), -1), torch.full((EXPERTS + 1,), 99)
        self.x = torch.zeros(pairs, x.shape[1], dtype=x.dtype)
        self.buffers = [
            self.x,
            *(torch.zeros(pairs, each[0].out_features, dtype=x.dtype) for each in weights),
        ]
        self.groups = [
            ProductGroup([(one.product, one.record(before, after)) for one in each], before, after)
            for each, before, after in zip(weights, self.buffers, self.buffers[1:], strict=False)
        ]
        self.table = (Group * 2)(*(group.fields for group in self.groups))
        self.record = DispatchRecord(
            tokens=tokens,
            top_k=top_k,
            num_experts=EXPERTS,
            experts=experts.data_ptr(),
            starts=self.starts.data_ptr(),
            pair_tokens=self.pair_tokens.data_ptr(),
            places=self.places.data_ptr(),
            groups=ctypes.addressof(self.table),
            units=self.units.data_ptr(),
        )
        self.kernels.team.run_one(self.kernels.experts.dispatch, 1, self.record, 1)
        gather = GatherRecord(
            x=x.data_ptr(),
            indexes=self.pair_tokens.data_ptr(),
            out=self.x.data_ptr(),
            row_bytes=x.shape[1] * x.itemsize,
        )
        self.kernels.team.run_one(self.kernels.rows.gather, pairs, gather, 1)

    def multiply(self) -> torch.Tensor:
        """Runs both groups' products, one after the other."""
        for number, units in enumerate(self.units.tolist()):
            record = GroupedRecord(group=ctypes.addressof(self.table) + number * Group.size())
            self.kernels.team.run_one(self.kernels.experts.product, units, record, 1)
        return self.buffers[-1]

    def segments(self, number: int) -> list[tuple[int, int]]:
        """(first unit, expert) of each expert with pairs in a group, and the end."""
        taken = [Segment.at(self.table[number].segments, index) for index in range(EXPERTS + 1)]
        return [(each.first, each.expert) for each in taken]


def matrices(dtype: torch.dtype, *sizes: int, bias: bool = False) -> list[list[PackedWeight]]:
    """Two products: sizes[0] -> sizes[1] -> sizes[2]."""
    return [
        [
            pack_weight(
                random(after, before, dtype=dtype, seed=7 * expert + 1, scale=before**-0.5),
                random(after, dtype=dtype, seed=expert) if bias else None,
            )
            for expert in range(EXPERTS)
        ]
        for before, after in zip(sizes, sizes[1:], strict=False)
    ]


@pytest.mark.parametrize("name", CHOICES)
def test_pairs_are_sorted(name: str):
    """As kernels.ops.experts.dispatch has it; inputs are gathered in that order."""
    experts = torch.tensor(CHOICES[name])
    x = random(len(experts), 38, dtype=BF16)
    done, expected = Sorted(experts, matrices(BF16, 38, 16, 16), x), dispatch(experts, EXPERTS)
    assert torch.equal(done.pair_tokens, expected.tokens) and torch.equal(done.places, expected.places)
    assert torch.equal(done.x, x[expected.tokens])
    used = [expert for expert, count in enumerate(expected.counts.tolist()) if count]
    for number in (0, 1):  # 16 columns are one block of a chunk of 256 rows
        assert done.units[number] == len(used)
        assert done.segments(number)[: len(used)] == list(enumerate(used))
        assert done.segments(number)[len(used)][0] == len(used)


def test_sorting_in_python():
    """The same function as Python runs it."""
    experts = torch.tensor(CHOICES["some without tokens"])
    done = Sorted(experts, matrices(F32, 16, 100, 16), random(5, 16, dtype=F32))
    before = done.places.clone(), done.units.clone(), [done.segments(number) for number in (0, 1)]
    done.places.zero_(), done.units.zero_(), done.pair_tokens.zero_()
    done.kernels.experts.dispatch.reference(done.record, 0, 1, 0)
    assert torch.equal(done.places, before[0]) and torch.equal(done.units, before[1])
    assert [done.segments(number) for number in (0, 1)] == before[2]


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("sizes", [(16, 16, 48), (34, 50, 150), (8, 200, 7)])
def test_products_of_chosen_experts(sizes: tuple[int, ...], dtype: torch.dtype, threads: int):
    """The bits of each expert's own product, of its own rows, whatever threads there are."""
    weights, experts = matrices(dtype, *sizes, bias=True), torch.tensor(CHOICES["some without tokens"])
    x = random(5, sizes[0], dtype=dtype)
    found = Sorted(experts, weights, x).multiply()
    for token, chosen in enumerate(experts.tolist()):
        for place, expert in enumerate(chosen):
            pair = dispatch(experts, EXPERTS).places[token, place]
            middle = weights[0][expert].multiply(x[token : token + 1])
            assert torch.equal(found[pair : pair + 1], weights[1][expert].multiply(middle))


def test_an_expert_with_more_rows_than_a_chunk(threads: int):
    """A chunk is 256 rows: units go on with the next one, and behind it with the next expert."""
    weights = matrices(F32, 8, 120, 16)
    experts = torch.tensor([[1]] * 300 + [[4]] * 2)
    x = random(302, 8, dtype=F32)
    done = Sorted(experts, weights, x)
    assert done.units.tolist() == [2 * 3 + 3, 2 + 1]
    assert done.segments(0)[:3] == [(0, 1), (6, 4), (9, done.segments(0)[2][1])]
    found = done.multiply()
    for expert, rows in ((1, slice(0, 300)), (4, slice(300, 302))):
        assert torch.equal(found[rows], weights[1][expert].multiply(weights[0][expert].multiply(x[rows])))
