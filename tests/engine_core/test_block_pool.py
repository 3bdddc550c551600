"""The block pool: examples, then a random walk against a plain model."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from engine_core.block_pool import BlockPool, InvariantError


def test_blocks_are_given_out_once_and_come_back() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.num_free == 0
    pool.free(first)
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == sorted(first)


def test_nothing_asked_is_nothing_given() -> None:
    """A slice from -0 would be the whole stack."""
    pool = BlockPool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


def test_the_block_freed_last_is_reused_first() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(4)
    pool.free(blocks)
    assert pool.allocate(4) == blocks, "a table's head is freed last, so the same table comes back"


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.free(blocks)
    assert pool.num_free == 0
    assert not pool.is_shared(blocks[0])
    pool.free(blocks)
    assert pool.num_free == 2


def test_replacing_a_shared_block_leaves_it_to_the_others() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.share([block])
    own = pool.replace_shared(block)
    assert own != block
    assert not pool.is_shared(block) and not pool.is_shared(own)
    pool.check_invariants([[block], [own]])


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ([[0, 0], [1]], "twice in the table"),
        ([[0]], "is not 3 blocks"),
        ([[0, 1], [1]], "block 1: count 1, in 2 tables"),
        ([[0, 2]], "both free and in a table"),
    ],
)
def test_broken_books_are_found(tables: list[list[int]], what: str) -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    pool.check_invariants([[0], [1]])
    with pytest.raises(InvariantError, match=what):
        pool.check_invariants(tables)


def test_a_double_free_is_found() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    pool.free(blocks)
    with pytest.raises(InvariantError):
        pool.check_invariants([])


def test_a_block_that_nobody_holds_is_found() -> None:
    """Held by the count alone: neither free nor in a table."""
    pool = BlockPool(2)
    pool.share(pool.allocate(1))
    pool.check_invariants([[0], [0]])
    with pytest.raises(InvariantError, match="count 2, in 1 tables"):
        pool.check_invariants([[0]])
    with pytest.raises(InvariantError, match="is not 2 blocks"):
        pool.check_invariants([])
    pool._references[1] = 1
    with pytest.raises(InvariantError, match="in no table"):
        pool.check_invariants([[0], [0]])


class PoolWalk(RuleBasedStateMachine):
    """Tables that open, grow, fork, part ways and close."""

    tables = Bundle("tables")

    @initialize(num_blocks=st.integers(1, 20))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.live: list[list[int]] = []

    @rule(target=tables, count=st.integers(0, 6))
    def open(self, count: int) -> list[int]:
        table = self.pool.allocate(min(count, self.pool.num_free))
        self.live.append(table)
        return table

    @rule(target=tables, table=tables, count=st.integers(0, 6))
    def fork(self, table: list[int], count: int) -> list[int]:
        other = table[:count]
        self.pool.share(other)
        self.live.append(other)
        return other

    @rule(table=tables, count=st.integers(0, 3))
    def grow(self, table: list[int], count: int) -> None:
        table += self.pool.allocate(min(count, self.pool.num_free))

    @precondition(lambda self: self.pool.num_free)
    @rule(table=tables, data=st.data())
    def write(self, table: list[int], data: st.DataObject) -> None:
        shared = [i for i, block in enumerate(table) if self.pool.is_shared(block)]
        assert shared == [i for i, block in enumerate(table) if sum(block in t for t in self.live) > 1]
        if shared:
            i = data.draw(st.sampled_from(shared))
            table[i] = self.pool.replace_shared(table[i])

    @rule(table=consumes(tables))
    def close(self, table: list[int]) -> None:
        self.pool.free(table)
        self.live = [other for other in self.live if other is not table]

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_invariants(self.live)
            held = {block for table in self.live for block in table}
            assert self.pool.num_free == self.pool.num_blocks - len(held)

    def teardown(self) -> None:
        for table in getattr(self, "live", []):
            self.pool.free(table)
        assert not hasattr(self, "pool") or self.pool.num_free == self.pool.num_blocks


PoolWalk.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPoolWalk = PoolWalk.TestCase
