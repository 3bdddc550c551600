"""Rows that decode and begin with the same blocks: two of them are one item, and nothing changes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import BlockPlan
from kernels.cpu.attention.sizes import LEAST_SHARED, LOOKED_AT
from tests.kernels.attention_cases import MIXED
from tests.kernels.block_plans import plan_blocks
from tests.kernels.cpu.attention.test_block_attention import BF16, BOTH, F32, TOLERANCES, BlockCase
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels

BLOCK = 16
ODD_ENDS = [0, 1, 14, 15, 16, 17, 40, 95]
"""Positions that rows have of their own, but for one."""


class SharedCase(BlockCase):
    """Some rows begin with the same blocks as the first one."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        shared: list[int],
        heads: int = 6,
        head_dim: int = 64,
        dtype: torch.dtype = BF16,
    ) -> None:
        """shared: by row, how many positions; in whole blocks."""
        super().__init__(rows, heads, 2, head_dim, BLOCK, dtype)
        for row, positions in enumerate(shared):
            self.tables[row, : positions // BLOCK] = self.tables[0, : positions // BLOCK]
            self.keys[row][:positions] = self.keys[0][:positions]
            self.values[row][:positions] = self.values[0][:positions]

    def alone(self, window: int | None = None) -> torch.Tensor:
        """Each row in a plan of its own."""
        rows = [self.block_plan(slice(row, row + 1), window) for row in range(len(self.counts))]
        queries = self.query.split(self.counts.tolist())
        return torch.cat([self.attend(query, plan) for query, plan in zip(queries, rows, strict=True)])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """It leaves few rows worth two items; tests that want more threads say so."""
    from kernels.cpu.runtime.thread_pool import TEAM

    before = TEAM.threads
    TEAM.set_threads(1)
    yield
    TEAM.set_threads(before)


def joined(plan: BlockPlan) -> int:
    """How many rows are in another one's company."""
    return len(plan.items) - int(plan.made[0])


@pytest.mark.parametrize(
    ("heads", "dtype", "shared"),
    [
        *((6, BF16, shared) for shared in (64, 512, 1040)),
        *((8, BF16, shared) for shared in (80, 496, 1024)),
        *((8, F32, shared) for shared in (240, 528, 1008)),
    ],
)
def test_two_rows_are_like_each_alone(shared: int, heads: int, dtype: torch.dtype):
    """Groups of 3 and 4 heads. What is shared ends before, at and after the end of a part of 512 positions,
    and rows end anywhere in a tile, in a part or at its end."""
    case = SharedCase([(shared + own, 1) for own in ODD_ENDS], [shared] * len(ODD_ENDS), heads, dtype=dtype)
    plan = case.block_plan(slice(None), None)
    assert joined(plan) >= 2
    result = case.attend(case.query, plan)
    assert torch.equal(result, case.alone())
    assert_close(result, case.exact(), *TOLERANCES[dtype])


def test_heads_of_128_values():
    case = SharedCase([(150 + own, 1) for own in ODD_ENDS], [144] * len(ODD_ENDS), head_dim=128)
    plan = case.block_plan(slice(None), None)
    assert joined(plan) == 4
    assert torch.equal(case.attend(case.query, plan), case.alone())


def test_in_any_company():
    """Beside prompts, a row of many parts, others that share nothing, and two prefixes in turns."""
    rows = [(200, 1), *MIXED, (330, 1), (199, 1), (0, 70), (1400, 1), (200, 3), (333, 1), (260, 1)]
    shared = [0] * (len(rows) - 2) + [96, 192]
    shared[10], shared[11] = 192, 112
    case = SharedCase(rows, shared)
    case.tables[10, :20] = case.tables[15, :20]
    plan = case.block_plan(slice(None), None)
    assert joined(plan) >= 2
    assert torch.equal(case.attend(case.query, plan), case.alone())


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_and_turns_change_nothing(threads: int):
    case = SharedCase([(540 + row, 1) for row in range(40)], [528] * 40)
    expected = case.alone()
    case.kernels.team.set_threads(threads)
    plan = case.block_plan(slice(None), None)
    assert joined(plan) == (20 if threads < 8 else 0), "a thread has too little then"
    for _ in range(5):
        assert torch.equal(case.attend(case.query, plan), expected)
    backwards = torch.arange(39, -1, -1)
    tables, starts = case.tables[::-1], case.starts[::-1]
    other = plan_blocks(case.kernels, starts, case.counts, tables, None, 64, 2)
    assert torch.equal(case.attend(case.query[backwards], other), expected[backwards])


@BOTH
def test_stale_halves_stay_hidden(dtype: torch.dtype):
    """What an earlier owner left behind a row's last position is NaN here, and what the shorter row of two
    has not is not computed from memory."""
    case = SharedCase([(64, 1), (500, 1), (65, 1), (511, 1), (70, 1), (300, 1)], [64] * 6, dtype=dtype)
    plan = case.block_plan(slice(None), None)
    assert joined(plan) == 3
    assert not case.attend(case.query, plan).isnan().any()
    case.query[0] = torch.nan
    result = case.attend(case.query, plan)
    assert result[0].isnan().all() and not result[1:].isnan().any()


def test_rows_that_are_not_joined():
    """Too little in common, another last part, a window, a group that fills an item, too few rows."""

    def case_of(shared: int, starts: list[int], heads: int = 6, head_dim: int = 64) -> SharedCase:
        return SharedCase([(start, 1) for start in starts], [shared] * len(starts), heads, head_dim)

    def count(case: SharedCase, window: int | None = None) -> int:
        return joined(case.block_plan(slice(None), window))

    alike = [200, 201, 202, 203, 204, 205]
    assert count(case_of(LEAST_SHARED, alike)) == 3
    assert count(case_of(LEAST_SHARED - BLOCK, alike)) == 0
    assert count(case_of(LEAST_SHARED, alike), window=1000) == 0
    assert count(case_of(LEAST_SHARED, alike[:2])) == 0
    assert count(case_of(LEAST_SHARED, [509, 510, 511, *range(512, 525)])) == 7, "one of each part is left"
    assert count(case_of(LEAST_SHARED, [400] * 6 + [1000])) == 3, "the last one is split"
    assert count(case_of(LEAST_SHARED, alike, heads=14)) == 0
    assert count(case_of(LEAST_SHARED, alike, head_dim=32)) == 0


def test_how_far_a_row_looks():
    """Not at every row of a large step."""
    rows = 2 * LOOKED_AT
    case = SharedCase([(70, 1)] * rows, [0] * rows)
    case.tables[LOOKED_AT + 1, :4] = case.tables[0, :4]
    assert joined(case.block_plan(slice(None), None)) == 0
    case.tables[LOOKED_AT, :4] = case.tables[0, :4]
    assert joined(case.block_plan(slice(None), None)) == 1


def test_blocks_that_are_not_filled_are_not_shared():
    """The same block number behind the end of a row says nothing: rows have it from before, or not yet."""
    case = SharedCase([(70, 1)] * 4, [64] * 4)
    case.tables[:, 4] = case.tables[0, 4]  # the tokens of this step go there, one over the other
    plan = case.block_plan(slice(None), None)
    behind = plan.items[int(plan.made[0]) :]
    assert behind[:, 8].tolist() == [64, 64]


def test_shared_lengths_of_a_random_walk():
    """Many rows in trees of prefixes."""
    rng = np.random.default_rng(0)
    starts = rng.integers(65, 700, 60)
    shared = [int(min(start, rng.integers(0, 700)) // BLOCK * BLOCK) for start in starts]
    shared = [min(one, int(starts[0]) // BLOCK * BLOCK) for one in shared]
    case = SharedCase([(int(start), 1) for start in starts], shared, heads=8)
    plan = case.block_plan(slice(None), None)
    assert joined(plan) > 10
    assert torch.equal(case.attend(case.query, plan), case.alone())
