"""A prefix cache as its changes tell of it."""

from collections.abc import Iterable

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_cache import block_hash
from pagewire.internal.v1.engine_pb2 import CacheChange

SIZE = 16
"""Bytes of a hash."""


class CacheMirror:
    """Blocks by hash: parent and token column."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, tuple[bytes, bytes]] = {}
        self.num_stored = 0

    def apply(self, changes: Iterable[CacheChange]) -> None:
        """Applies changes; each must make sense."""
        for change in changes:
            if change.HasField("cleared"):
                self.blocks.clear()
            elif change.HasField("stored"):
                stored = change.stored
                hashes = _split(stored.hashes)
                width = len(stored.token_ids) // len(hashes)
                parent = stored.parent_hash
                for i, content in enumerate(hashes):
                    assert content not in self.blocks
                    tokens = stored.token_ids[i * width : (i + 1) * width]
                    assert not parent or block_hash(parent, tokens) == content
                    self.blocks[content] = parent, tokens
                    self.num_stored += 1
                    parent = content
            else:
                for content in _split(change.removed_hashes):
                    del self.blocks[content]

    def check(self, pool: BlockPool, num_known: int) -> None:
        """Fails unless the mirror's blocks are cached, and as many as the log knows."""
        assert all(pool.find(content) is not None for content in self.blocks)
        assert len(self.blocks) == num_known <= pool.num_cached


def _split(column: bytes) -> list[bytes]:
    return [column[i : i + SIZE] for i in range(0, len(column), SIZE)]
