"""What the prefix cache holds, with token ids, and how that changes: for gateways that route by prefix.

The cache itself keeps no tokens. A log is made when something first watches the cache; without one the cache
does nothing for it. Blocks that were cached before are unknown to the log until a request finds them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pagewire.internal.v1.engine_pb2 import CacheChange, CacheCleared, CachedBlocks


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block of the prefix cache: what it continues, and what is in it."""

    parent: bytes
    """Hash of the block before; empty: it begins a prefix."""
    token_ids: bytes
    """uint32 column."""
    tenant: str
    cache_salt: str


Change = tuple[bytes, CachedBlock | None]
"""A hash, and its block if it is stored; None: it is removed. An empty hash: all are removed."""


class CacheLog:
    """Known blocks by hash, and the changes that take() has not returned yet."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, CachedBlock] = {}
        self._changes: list[Change] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, content: bytes) -> bool:
        return content in self._blocks

    def stored(self, content: bytes, block: CachedBlock) -> None:
        """Adds a block that is in the cache and unknown."""
        self._blocks[content] = block
        self._changes.append((content, block))

    def removed(self, content: bytes) -> None:
        """Removes a block, if it is known."""
        if self._blocks.pop(content, None) is not None:
            self._changes.append((content, None))

    def cleared(self) -> None:
        """Removes all blocks."""
        self._blocks.clear()
        self._changes = [(b"", None)]

    def take(self) -> list[Change]:
        """Returns the changes since the last call, oldest first."""
        changes, self._changes = self._changes, []
        return changes

    def snapshot(self) -> Iterator[Change]:
        """Yields all known blocks, each behind its parent where that is known."""
        told: set[bytes] = set()
        for content in self._blocks:
            chain = []
            while content in self._blocks and content not in told:
                chain.append(content)
                told.add(content)
                content = self._blocks[content].parent
            for each in reversed(chain):
                yield each, self._blocks[each]


def encode(changes: Iterable[Change]) -> list[CacheChange]:
    """Returns changes as messages, each with as many blocks as follow one another."""
    runs: list[list[Change]] = []
    for change in changes:
        if runs and _continues(change, runs[-1][-1]):
            runs[-1].append(change)
        else:
            runs.append([change])
    return [_encode_run(run) for run in runs]


def _continues(change: Change, before: Change) -> bool:
    (content, block), (content_before, block_before) = change, before
    if block is None or block_before is None:
        return block is block_before and bool(content) and bool(content_before)
    return block.parent == content_before  # which has one tenant and salt


def _encode_run(run: list[Change]) -> CacheChange:
    content, first = run[0]
    hashes = b"".join(content for content, _ in run)
    if first is None:
        return CacheChange(removed_hashes=hashes) if content else CacheChange(cleared=CacheCleared())
    stored = CachedBlocks(
        tenant=first.tenant,
        cache_salt=first.cache_salt,
        parent_hash=first.parent,
        hashes=hashes,
        token_ids=b"".join(block.token_ids for _, block in run if block is not None),
    )
    return CacheChange(stored=stored)
