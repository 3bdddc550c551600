"""Block tables of sequences: all blocks are allocated to sequences and freed here.

Slot p of a sequence holds the keys and values of its token p; it lies in block table[p // block_size].
A sequence may write to slots below its `num_slots`. Beyond that it must reserve(): the slot may have no block
yet, or lie in a block that other sequences read too.

Blocks of the prefix cache are full, and a sequence starts to compute behind the cached blocks that it is
given: it never writes to one.
"""

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.request import Sequence
from engine_core.step.plan import Plan


class BlockTables:
    """Opens, grows, forks and closes the block tables of sequences over one pool."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

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

    def close(self, sequence: Sequence) -> None:
        """Frees all blocks of a sequence."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_slots = sequence.num_committed = 0
