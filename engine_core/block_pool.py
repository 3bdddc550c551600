"""The pool of KV blocks: who holds a block is a count, who is free is a stack.

All operations cost O(1) per block. The block that was freed last is given out first: its memory is
the likeliest to be warm.
"""

from collections import Counter
from collections.abc import Iterable, Sequence


class InvariantError(AssertionError):
    """The books do not balance: a bug of ours."""


class BlockPool:
    """Blocks 0 to num_blocks - 1, each free or held by one or more block tables."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks, each with one reference."""
        assert 0 <= count <= len(self._free), "the caller looks at num_free first"
        if not count:
            return []
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these held blocks."""
        for block in blocks:
            assert self._references[block] > 0, "only a held block can be shared"
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drops a reference to each block, last one first; a block that has none left is free."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def is_shared(self, block: int) -> bool:
        """Whether more than one table holds the block, so that none of them may write to it."""
        return self._references[block] > 1

    def replace_shared(self, block: int) -> int:
        """Gives one of a shared block's holders a block of its own (the caller copies the content)."""
        assert self.is_shared(block)
        self._references[block] -= 1
        return self.allocate(1)[0]

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises InvariantError unless `tables`, all block tables there are, account for every block.

        Python code runs per block that is held, C code per block of the pool (about 10 ms for 200,000).
        """
        references: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise InvariantError(f"a block is twice in the table {table}")
            references.update(table)
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a block is free twice")
        if len(free) + len(references) != self.num_blocks:
            raise InvariantError(f"{len(free)} free + {len(references)} held is not {self.num_blocks} blocks")
        if not free.isdisjoint(references):
            raise InvariantError("a block is both free and in a table")
        for block, count in references.items():
            if count != self._references[block]:
                raise InvariantError(f"block {block}: count {self._references[block]}, in {count} tables")
        if sum(self._references) != references.total():
            raise InvariantError("a block that is in no table is counted as held")
