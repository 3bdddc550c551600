"""Block tables of sequences: all blocks are allocated to sequences and freed here.

Slot p of a sequence holds the keys and values of its token p; it lies in block table[p // block_size].
A sequence may write to slots below its `num_slots`. Beyond that it must reserve(): the slot may have no block
yet, or lie in a block that other sequences read too.

Blocks of the prefix cache are full, and a sequence starts to compute behind the cached blocks that it is
given: it never writes to one.
"""

from bisect import bisect_left
from collections.abc import Iterable

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.request import Sequence
from engine_core.step.plan import Plan

SAMPLED_STEPS = 16


class BlockTables:
    """Opens, grows, forks and closes the block tables of sequences over one pool."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.held: dict[object, list[int]] = {}
        """Blocks that other engine cores read, or that are read from them, by what holds them."""

    def blocks_for(self, slots: int) -> int:
        """Returns the number of blocks that hold so many slots."""
        return -(-slots // self.block_size)

    def missing(self, slots: int, cached: list[int]) -> int:
        """Returns the free blocks that open() takes for so many slots, with these cached blocks."""
        return self.blocks_for(slots) - sum(map(self.pool.is_held, cached))

    def open(self, sequence: Sequence, slots: int, cached: list[int]) -> None:
        """Allocates the blocks for `slots` slots of a sequence; the caller has checked that they are free.

        cached: blocks of the prefix cache that hold its first tokens, which count as computed.
        """
        self.pool.share(cached)  # first: free ones among them must not be allocated
        sequence.blocks = cached + self.pool.allocate(self.blocks_for(slots) - len(cached))
        self._count_slots(sequence)
        sequence.set_computed(len(cached) * self.block_size)
        sequence.num_committed = len(cached)

    def reserve(self, sequence: Sequence, end: int, plan: Plan) -> bool:
        """Makes the slots from num_computed_tokens to `end` writable, with new blocks and with copies.

        Adds the changes to the plan. Returns False, and changes nothing, if the pool has too few free blocks.
        """
        blocks, pool = sequence.blocks, self.pool
        first = sequence.num_computed_tokens // self.block_size
        num_held = len(blocks)
        shared = [i for i in range(first, num_held) if pool.is_shared(blocks[i])] if first < num_held else ()
        missing = max(0, self.blocks_for(end) - num_held)
        if pool.num_free < len(shared) + missing:
            return False
        for i in shared:
            source = blocks[i]
            blocks[i] = pool.replace_shared(source)
            plan.copy_block(source, blocks[i])
            plan.change_table(sequence.row, i, [blocks[i]])
        if missing:
            new = [pool.allocate_one()] if missing == 1 else pool.allocate(missing)
            plan.change_table(sequence.row, num_held, new)
            blocks += new
        self._count_slots(sequence)
        return True

    def fork(self, leader: Sequence, sibling: Sequence) -> None:
        """Shares the computed blocks of a leader with a sibling. Neither may write to them from now on.

        Blocks that the leader has reserved beyond them stay its own. (The worker copies the whole table; the
        sibling's next change replaces those entries before it writes through them.)
        """
        computed = leader.num_computed_tokens
        sibling.blocks = leader.blocks[: self.blocks_for(computed)]
        self.pool.share(sibling.blocks)
        sibling.set_computed(computed)
        sibling.num_slots = leader.num_slots = computed
        sibling.hashes, sibling.num_committed = leader.hashes.copy(), leader.num_committed

    def _count_slots(self, sequence: Sequence) -> None:
        """Sets num_slots to the slots of its blocks, without one for its last token, which needs none."""
        sequence.num_slots = min(len(sequence.blocks) * self.block_size, sequence.limit - 1)

    def hold(self, holder: object, blocks: list[int]) -> None:
        """Keeps cached blocks from being allocated until release()."""
        self.pool.share(blocks)
        self.held[holder] = blocks

    def take(self, holder: object, count: int) -> list[int]:
        """Allocates blocks that no sequence has; the caller has checked that they are free."""
        self.held[holder] = self.pool.allocate(count)
        return self.held[holder]

    def release(self, holder: object) -> None:
        """Frees what hold() or take() gave. A holder that has nothing is no error."""
        self.pool.free(self.held.pop(holder, []))

    def num_tokens_lost(self, sequence: Sequence) -> int:
        """Returns the tokens that would have to be computed again if the sequence lost its blocks.

        Blocks that it shares with other sequences, the first ones of its table, stay and are found again.
        (Its own may stay in the prefix cache for a while, but a preemption frees blocks because they are
        needed.)
        """
        blocks, is_shared = sequence.blocks, self.pool.is_shared
        if not blocks or not is_shared(blocks[0]):
            return sequence.num_computed_tokens
        shared = bisect_left(blocks, True, key=lambda block: not is_shared(block))
        return max(0, sequence.num_computed_tokens - shared * self.block_size)

    def close(self, sequence: Sequence) -> None:
        """Frees all blocks of a sequence."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_slots = sequence.num_committed = 0


class Fragmentation:
    """Internal fragmentation: slots of held blocks without computed tokens, summed over all samples.

    A sequence allocates whole blocks, and those of its whole prompt on admission. Empty are the rest of its
    last block, and the part of a prompt that later steps compute. A shared block counts once. Sampled every
    few steps, since a sample visits every running sequence.
    """

    def __init__(self, tables: BlockTables) -> None:
        self.num_empty = 0
        self.num_allocated = 0
        self._tables = tables

    @property
    def ratio(self) -> float:
        """Empty over allocated slots, 0 to 1; 0 before the first sample."""
        return self.num_empty / self.num_allocated if self.num_allocated else 0.0

    def step(self, step: int, holders: Iterable[Sequence]) -> None:
        """Samples every few steps. holders: all sequences with blocks; planned tokens count as computed."""
        if step % SAMPLED_STEPS == 0:
            pool, size = self._tables.pool, self._tables.block_size
            self.num_empty += count_empty(self._tables, holders)
            self.num_allocated += (pool.num_blocks - pool.num_free) * size


def count_empty(tables: BlockTables, holders: Iterable[Sequence]) -> int:
    """Returns the slots without a computed token in the blocks of these sequences."""
    size, is_shared = tables.block_size, tables.pool.is_shared
    empty, seen = 0, set[int]()
    for sequence in holders:
        full, rest = divmod(sequence.num_computed_tokens, size)
        blocks = sequence.blocks
        if rest and is_shared(blocks[full]):
            if blocks[full] in seen:
                rest, full = 0, full + 1
            else:
                seen.add(blocks[full])
        empty += (len(blocks) - full) * size - rest
    return empty
