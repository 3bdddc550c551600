"""What enters and leaves the prefix cache: told to the worker by block, and to gateways with token ids.

The worker outlives an engine core that is killed, and tells the next one which of its blocks hold what, and
which of its checkpoints of states. Changes travel with the plans, and the worker executes all plans that it
has: so a block that it names is full, a checkpoint that it names is saved, and what a plan may write to is
not among those that it names. What was found or lost since the last plan is told before the core waits, and
what was lost by distrust or by a reset at once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import CacheChange, CacheCleared, CachedBlocks
from pagewire.ipc.columns import pack_u32


class ContentChanges:
    """Which of some numbered places, blocks or checkpoints, have got or lost a content since the last call of
    take_losses() and take_kept()."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        """on_loss: called when contents are forgotten for another reason than that a plan writes there."""
        self.on_loss = on_loss
        self._kept: dict[int, bytes] = {}
        self._forgotten: dict[int, None] = {}
        self._forgets_all = False

    def __bool__(self) -> bool:
        return bool(self._kept or self._forgotten or self._forgets_all)

    def kept(self, place: int, content: bytes) -> None:
        """A place is cached; the plan in the making, or one before it, computes the last of it."""
        self._kept[place] = content

    def forgotten(self, place: int) -> None:
        """A place is not cached any more; the plan in the making may write to it."""
        if self._kept.pop(place, None) is None:
            self._forgotten[place] = None

    def forgot_all(self) -> None:
        """No place is cached any more."""
        self._kept.clear()
        self._forgotten.clear()
        self._forgets_all = True

    def take_kept(self) -> tuple[bytes, bytes]:
        """Returns two columns, the places that were cached and their contents."""
        columns = pack_u32(list(self._kept)), b"".join(self._kept.values())
        self._kept.clear()
        return columns

    def take_losses(self) -> tuple[bool, bytes]:
        """Returns whether all were forgotten, and the column of those that were forgotten since."""
        losses = self._forgets_all, pack_u32(list(self._forgotten))
        self._forgotten.clear()
        self._forgets_all = False
        return losses


class KeptChanges:
    """Changes that take() has not returned yet."""

    def __init__(self, on_loss: Callable[[], None] = lambda: None) -> None:
        """on_loss: see ContentChanges."""
        self.blocks = ContentChanges(on_loss)
        self.checkpoints = ContentChanges(on_loss)
        """Of states: see state_checkpoints.py."""

    def __bool__(self) -> bool:
        return bool(self.blocks) or bool(self.checkpoints)

    def take(self) -> worker_pb2.KeptChanges:
        """Returns the changes since the last call. To be sent with a plan, or when all plans were sent."""
        message = self.take_losses()
        message.kept_blocks, message.kept_contents = self.blocks.take_kept()
        message.kept_checkpoints, message.kept_checkpoint_contents = self.checkpoints.take_kept()
        return message

    def take_losses(self) -> worker_pb2.KeptChanges:
        """Returns what was forgotten since the last call. May be sent at any time."""
        forgets_all, blocks = self.blocks.take_losses()
        forgets_checkpoints, checkpoints = self.checkpoints.take_losses()
        return worker_pb2.KeptChanges(
            forgets_all=forgets_all,
            forgotten_blocks=blocks,
            forgets_all_checkpoints=forgets_checkpoints,
            forgotten_checkpoints=checkpoints,
        )


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block of the prefix cache: what it continues, and what is in it."""

    parent: bytes
    """Hash of the block before; empty: it begins a prefix."""
    token_ids: bytes
    """uint32 column."""
    tenant: str
    cache_salt: str
    adapter: tuple[str, bytes] = ("", b"")
    """Name and digest of what its keys and values were computed with."""


Change = tuple[bytes, CachedBlock | None]
"""A hash, and its block if it is stored; None: it is removed. An empty hash: all are removed."""


class CacheLog:
    """What the prefix cache holds, with token ids, and how that changes: for gateways that route by prefix.

    The cache itself keeps no tokens. A log is made when something first watches the cache; without one the
    cache does nothing for it. Blocks that were cached before are unknown to the log until a request finds
    them.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, CachedBlock] = {}  # by hash
        self._changes: list[Change] = []  # since take()

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
    return (
        block.parent == content_before and block.adapter == block_before.adapter
    )  # it has one tenant and salt


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
        adapter=first.adapter[0],
        adapter_digest=first.adapter[1],
    )
    return CacheChange(stored=stored)
