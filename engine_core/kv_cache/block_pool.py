"""The pool of KV blocks: reference counts of held blocks, and the order in which free blocks are allocated.

All operations cost O(1) per block. Free blocks without cached content are allocated first, the one freed last
before the others, since its memory is the most likely to be warm. Then come free blocks with cached content,
least recently used first; until then they can be found and shared again.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from engine_core.errors import InvariantError
from engine_core.kv_cache.cache_changes import CacheLog, ContentChanges


class BlockPool:
    """Blocks 0 to num_blocks - 1, each free or held by one or more block tables.

    A cached block has a content, the hash that prefix_cache.py gives it. One block is cached per content.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.log: CacheLog | None = None
        """Is told what leaves the cache."""
        self.changes: ContentChanges | None = None
        """Is told what enters and leaves it."""
        self._references = [0] * num_blocks
        self._contents: list[bytes | None] = [None] * num_blocks
        self._by_content: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))  # free, not cached: a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and cached: next to be evicted first

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached or not."""
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        return 1.0 - self.num_free / self.num_blocks if self.num_blocks else 0.0

    @property
    def num_cached(self) -> int:
        """Cached blocks, free or held."""
        return len(self._by_content)

    @property
    def num_free_cached(self) -> int:
        """Free blocks with cached content."""
        return len(self._cached)

    def count(self, start: int, end: int) -> tuple[int, int, int]:
        """Returns how many of the blocks from start to end are held, how many of these by several tables, and
        how many are free with cached content. Costs some 50 ns per block."""
        references = self._references[start:end]
        held = len(references) - references.count(0)
        return held, held - references.count(1), len(self._cached.keys() & range(start, end))

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks, each with one reference."""
        assert 0 <= count <= self.num_free, "the caller checks num_free first"
        if not count:
            return []
        blocks = self._blank[: -count - 1 : -1]
        del self._blank[-count:]
        while len(blocks) < count:
            blocks.append(self._evict())
        for block in blocks:
            self._references[block] = 1
        return blocks

    def allocate_one(self) -> int:
        """As allocate(1), without the list: for a decoding sequence that has filled a block."""
        block = self._blank.pop() if self._blank else self._evict()
        self._references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these blocks, which are held, or free and returned by find()."""
        for block in blocks:
            if not self._references[block]:
                assert block in self._cached, "a free block that is not cached cannot be shared"
                del self._cached[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drops a reference to each block, the last one first; a block without references is free.

        The tail of a sequence is evicted before its head, which more sequences may share.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                if self._contents[block] is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = None

    def is_held(self, block: int) -> bool:
        """Whether a block table holds the block."""
        return self._references[block] > 0

    def num_references(self, block: int) -> int:
        """Block tables that hold the block."""
        return self._references[block]

    def is_shared(self, block: int) -> bool:
        """Whether several block tables hold the block, so that no sequence may write to it."""
        return self._references[block] > 1

    def replace_shared(self, block: int) -> int:
        """Replaces a shared block for one of its holders by a new block; the caller copies the content."""
        assert self.is_shared(block)
        self._references[block] -= 1
        return self.allocate_one()

    # Cached content.

    def keep(self, block: int, content: bytes) -> None:
        """Caches a held block, which will not be written to again, under this content.

        Does nothing when another block is cached under the same content.
        """
        assert self._references[block] > 0 and self._contents[block] in (None, content)
        if self._by_content.setdefault(content, block) == block:
            if self.changes is not None and self._contents[block] is None:
                self.changes.kept(block, content)
            self._contents[block] = content

    def restore(self, contents: Mapping[int, bytes]) -> None:
        """Caches blocks that hold these contents from an earlier life, the least recently used first. To be
        called before any block is allocated. Raises ValueError, and changes nothing, for blocks that the pool
        does not have and for a content that two blocks have."""
        by_content = {content: block for block, content in contents.items()}
        if len(by_content) != len(contents) or any(block >= self.num_blocks for block in contents):
            raise ValueError("the blocks of an earlier life are not those of this one")
        assert len(self._blank) == self.num_blocks, "blocks were allocated before"
        self._by_content = by_content
        for block, content in contents.items():
            self._contents[block] = content
            self._cached[block] = None
            if self.changes is not None:
                self.changes.kept(block, content)
        self._blank = [block for block in self._blank if block not in contents]

    def find(self, content: bytes) -> int | None:
        """Returns the block that is cached under this content."""
        return self._by_content.get(content)

    def content(self, block: int) -> bytes | None:
        """Returns the content that a block is cached under."""
        return self._contents[block]

    def forget(self, blocks: Iterable[int]) -> None:
        """Removes these blocks from the cache; blocks that are not cached are skipped."""
        for block in blocks:
            self._forget(block)
            if block in self._cached:
                del self._cached[block]
                self._blank.append(block)
        if self.changes is not None:
            self.changes.on_loss()

    def forget_all(self) -> None:
        """Removes all blocks from the cache."""
        self._contents = [None] * self.num_blocks
        self._by_content.clear()
        self._blank += self._cached
        self._cached.clear()
        if self.changes is not None:
            self.changes.forgot_all()
            self.changes.on_loss()
        if self.log is not None:
            self.log.cleared()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        content = self._contents[block]
        if content is not None:
            del self._by_content[content]
            self._contents[block] = None
            if self.changes is not None:
                self.changes.forgotten(block)
            if self.log is not None:
                self.log.removed(content)

    # Invariants.

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises InvariantError unless `tables`, which must be all block tables, account for every block.

        Runs Python code per held or cached block, C code per block of the pool (8 ms for 200,000).
        """
        references: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise InvariantError(f"a block is twice in the table {table}")
            references.update(table)
        free = {*self._blank, *self._cached}
        if len(free) != self.num_free:
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
        self._check_contents()

    def _check_contents(self) -> None:
        """Checks that contents and cached blocks are one to one, and free blocks in the right list."""
        known = {block: content for content, block in self._by_content.items()}
        if len(known) != len(self._by_content):
            raise InvariantError("a block is known for two contents")
        if self.num_blocks - self._contents.count(None) != len(known):
            raise InvariantError("a block has a content under which it is not found")
        if any(self._contents[block] != content for block, content in known.items()):
            raise InvariantError("a block is found under a content that it does not have")
        if not known.keys() >= self._cached.keys() or not known.keys().isdisjoint(self._blank):
            raise InvariantError("a free block is in the wrong list for its content")
