"""Internal fragmentation of the KV cache: slots of held blocks without computed tokens.

A sequence allocates whole blocks, and those of its whole prompt on admission. Empty are the rest of its last
block, and the part of a prompt that later steps compute. A shared block counts once.

Sampled every few steps, since a sample visits every running sequence.
"""

from collections.abc import Iterable

from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import Sequence

SAMPLED_STEPS = 16


class Fragmentation:
    """Empty and allocated slots, summed over all samples since the start."""

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
