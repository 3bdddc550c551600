"""The block pool: examples, then a random walk against a plain model."""

from collections.abc import Callable

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

from engine_core.errors import InvariantError
from engine_core.kv_cache.block_pool import BlockPool


def test_blocks_are_given_out_once_and_come_back() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.num_free == 0
    assert pool.usage == 1
    pool.free(first)
    assert pool.num_free == 3 and pool.usage == 0.25
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


# Known content.


def cached(pool: BlockPool, *contents: bytes) -> list[int]:
    """Blocks of one table with these contents, free again."""
    blocks = pool.allocate(len(contents))
    for block, content in zip(blocks, contents, strict=True):
        pool.keep(block, content)
    pool.free(blocks)
    return blocks


def test_a_free_block_keeps_its_content_until_it_is_handed_out() -> None:
    pool = BlockPool(2)
    (block,) = cached(pool, b"a")
    assert pool.num_free == 2 and pool.find(b"a") == block and pool.content(block) == b"a"
    pool.allocate(2)
    assert pool.find(b"a") is None and pool.content(block) is None


def test_blank_blocks_are_handed_out_before_known_ones() -> None:
    pool = BlockPool(4)
    known = cached(pool, b"a", b"b")
    blank = pool.allocate(2)
    assert not {*blank} & {*known} and pool.num_cached == 2
    pool.free(blank)
    assert pool.allocate(2) == blank and pool.num_cached == 2


def test_the_tail_of_a_table_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    first, second, third = cached(pool, b"a", b"b", b"c")
    assert pool.allocate(1) == [third]
    assert pool.allocate(2) == [second, first]


def test_known_blocks_are_evicted_least_recently_used_first() -> None:
    pool = BlockPool(4)
    (a,), (b,), (c,) = (cached(pool, content) for content in (b"a", b"b", b"c"))
    pool.share([a])
    pool.free([a])
    (blank,) = pool.allocate(1)
    assert pool.allocate(3) == [b, c, a] and blank not in (a, b, c)


def test_a_free_block_that_is_shared_is_held_again() -> None:
    pool = BlockPool(2)
    (block,) = cached(pool, b"a")
    pool.share([block])
    assert pool.num_free == 1 and pool.is_held(block) and not pool.is_shared(block)
    pool.share([block])
    assert pool.is_shared(block)
    pool.check_invariants([[block], [block]])


def test_one_block_for_each_content() -> None:
    pool = BlockPool(2)
    first, second = blocks = pool.allocate(2)
    pool.keep(first, b"a")
    pool.keep(second, b"a")
    pool.keep(first, b"a")
    assert pool.find(b"a") == first and pool.content(second) is None
    pool.free(blocks)
    pool.check_invariants([])
    assert pool.allocate(1) == [second], "a block without content cannot be found"


def test_forgotten_blocks_are_blank() -> None:
    pool = BlockPool(4)
    free = cached(pool, b"a", b"b")
    held = pool.allocate(2)
    for block, content in zip(held, (b"c", b"d"), strict=True):
        pool.keep(block, content)
    pool.forget(held[:1])
    assert pool.find(b"c") is None and pool.num_cached == 3
    pool.forget_all()
    assert pool.num_cached == 0 and pool.num_free == 2
    pool.check_invariants([held])
    pool.free(held)
    pool.check_invariants([])
    assert {*pool.allocate(4)} == {*free, *held}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda pool: pool._by_content.update(x=0), "known for two contents"),
        (lambda pool: pool._by_content.clear(), "under which it is not found"),
        (lambda pool: pool._contents.__setitem__(0, b"x"), "that it does not have"),
        (lambda pool: pool._blank.append(pool._cached.popitem()[0]), "in the wrong list"),
    ],
)
def test_broken_books_of_contents_are_found(change: Callable[[BlockPool], object], what: str) -> None:
    pool = BlockPool(2)
    assert cached(pool, b"a") == [0]
    pool.check_invariants([])
    change(pool)
    with pytest.raises(InvariantError, match=what):
        pool.check_invariants([])


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


def test_a_block_that_no_sequence_holds_is_found() -> None:
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


CONTENTS = [b"a", b"b", b"c", b"d", b"e", b"f"]


class PoolWalk(RuleBasedStateMachine):
    """Tables that open, grow, fork, part ways and close; contents that become known and are found.

    A plain model says which contents are known: those of held blocks, and of the free ones that were
    not handed out since. Blocks of known content are not written to.
    """

    tables = Bundle("tables")

    @initialize(num_blocks=st.integers(1, 20))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.live: list[list[int]] = []
        self.known: dict[bytes, int] = {}
        self.evictable: list[int] = []  # free with known content, the next one to go first

    @rule(target=tables, count=st.integers(0, 6))
    def open(self, count: int) -> list[int]:
        table = self.allocate(count)
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
        table += self.allocate(count)

    @precondition(lambda self: self.pool.num_free)
    @rule(table=tables, data=st.data())
    def write(self, table: list[int], data: st.DataObject) -> None:
        shared = [i for i, block in enumerate(table) if self.pool.is_shared(block)]
        assert shared == [i for i, block in enumerate(table) if sum(block in t for t in self.live) > 1]
        if shared:
            i = data.draw(st.sampled_from(shared))
            table[i] = self.pool.replace_shared(table[i])
            self.handed_out([table[i]])

    @rule(table=tables, content=st.sampled_from(CONTENTS), data=st.data())
    def keep(self, table: list[int], content: bytes, data: st.DataObject) -> None:
        blocks = [block for block in table if self.pool.content(block) in (None, content)]
        if blocks:
            block = data.draw(st.sampled_from(blocks))
            self.pool.keep(block, content)
            self.known.setdefault(content, block)

    @rule(target=tables, contents=st.permutations(CONTENTS), most=st.integers(0, 3))
    def find(self, contents: list[bytes], most: int) -> list[int]:
        table = [block for content in contents if (block := self.pool.find(content)) is not None][:most]
        self.pool.share(table)
        self.evictable = [block for block in self.evictable if block not in table]
        self.live.append(table)
        return table

    @rule(table=tables)
    def forget(self, table: list[int]) -> None:
        self.pool.forget(table)
        self.known = {content: block for content, block in self.known.items() if block not in table}

    @rule(sure=st.sampled_from([False, False, False, True]))
    def forget_all(self, sure: bool) -> None:
        if sure:
            self.pool.forget_all()
            self.known, self.evictable = {}, []

    @rule(table=consumes(tables))
    def close(self, table: list[int]) -> None:
        self.pool.free(table)
        self.live = [other for other in self.live if other is not table]
        held = {block for other in self.live for block in other}
        self.evictable += [b for b in reversed(table) if b in self.known.values() and b not in held]

    def allocate(self, count: int) -> list[int]:
        blocks = self.pool.allocate(min(count, self.pool.num_free))
        self.handed_out(blocks)
        return blocks

    def handed_out(self, blocks: list[int]) -> None:
        """What was known of them is not known any more; and it was their turn."""
        evicted = [block for block in blocks if block in self.evictable]
        assert blocks[len(blocks) - len(evicted) :] == evicted == self.evictable[: len(evicted)]
        del self.evictable[: len(evicted)]
        self.known = {content: block for content, block in self.known.items() if block not in blocks}

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_invariants(self.live)
            held = {block for table in self.live for block in table}
            assert self.pool.num_free == self.pool.num_blocks - len(held)
            contents = {content: self.pool.find(content) for content in CONTENTS}
            assert {c: block for c, block in contents.items() if block is not None} == self.known

    def teardown(self) -> None:
        for table in getattr(self, "live", []):
            self.pool.free(table)
        assert not hasattr(self, "pool") or self.pool.num_free == self.pool.num_blocks


PoolWalk.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPoolWalk = PoolWalk.TestCase
