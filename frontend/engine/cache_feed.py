"""What a subscriber is told of the engine cores' prefix caches: all that they hold, then what changes.

When a core comes or goes, or a subscriber does not keep up, the subscriber gets a snapshot of all cores
again: what waits for it is bounded.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from frontend.engine.core import Core
from pagewire.internal.v1 import engine_pb2

HASH_BYTES = 16
"""Of a block's hash in the cores' columns."""
MAX_WAITING_BYTES = 4 << 20
"""Changes that wait for a subscriber; above that it gets a snapshot in their place."""
INTERVAL_S = 1.0
"""Between two snapshots for a subscriber, at least: each costs the cores time."""


@dataclass(frozen=True, slots=True)
class CacheBatch:
    """Changes that a core made in one step, or a part of a snapshot."""

    changes: Sequence[engine_pb2.CacheChange]
    part: int = 0
    num_parts: int = 0
    """0: this is no snapshot."""
    num_blocks: int = 0
    """In all parts of the snapshot."""
    num_unknown_blocks: int = 0
    """Blocks that the snapshot lacks."""


class CacheFeed:
    """What one subscriber has not taken yet."""

    def __init__(self, cores: Callable[[], Sequence[Core]], numbers: Iterator[int]) -> None:
        """cores: returns those of the moment. numbers: of watches; none is used twice."""
        self._cores = cores
        self._numbers = numbers
        self._watched: dict[int, Core] = {}
        self._parts: dict[int, list[engine_pb2.CacheChanges]] = {}  # of snapshots that come in, by watch
        self._snapshot: deque[CacheBatch] = deque()
        self._changes: deque[engine_pb2.CacheChanges] = deque()
        self._waiting_bytes = 0
        self._is_stale = True
        self._next_begin = 0.0
        self._woken = asyncio.Event()

    def knows(self, watch: int) -> bool:
        """Whether the watch is one of this feed's."""
        return watch in self._watched

    async def take(self) -> CacheBatch:
        """Returns the next batch; the first one begins a snapshot, and so does any later one that does."""
        while True:
            if self._is_stale:
                await self._begin()
            if self._snapshot:
                return self._snapshot.popleft()
            if self._changes and not self._parts:
                message = self._changes.popleft()
                self._waiting_bytes -= message.ByteSize()
                return CacheBatch(message.changes)
            self._woken.clear()
            await self._woken.wait()

    def put(self, message: engine_pb2.CacheChanges) -> None:
        """Adds a message of a core for one of this feed's watches."""
        if message.num_parts:
            self._parts[message.watch].append(message)
            if all(parts and len(parts) == parts[0].num_parts for parts in self._parts.values()):
                self._put_snapshot([part for parts in self._parts.values() for part in parts])
        elif len(self._watched) > 1 and any(change.HasField("cleared") for change in message.changes):
            self.restart()  # to a subscriber the cores are one cache, of which the others' blocks remain
        else:
            self._changes.append(message)
            self._waiting_bytes += message.ByteSize()
            if self._waiting_bytes > MAX_WAITING_BYTES:
                self.restart()
        self._woken.set()

    def restart(self) -> None:
        """Drops what was not taken: the next batch begins a snapshot."""
        for watch, core in self._watched.items():
            core.watch_cache(watch, ends=True)
        for each in (self._watched, self._parts, self._snapshot, self._changes):
            each.clear()
        self._waiting_bytes = 0
        self._is_stale = True
        self._woken.set()

    async def _begin(self) -> None:
        """Watches all cores; without any, the snapshot is empty."""
        now = asyncio.get_running_loop().time
        while (pause := self._next_begin - now()) > 0:
            await asyncio.sleep(pause)
        self._next_begin, self._is_stale = now() + INTERVAL_S, False
        for core in self._cores():
            if core.serves:
                watch = next(self._numbers)
                self._watched[watch], self._parts[watch] = core, []
                core.watch_cache(watch)
        if not self._watched:
            self._put_snapshot([engine_pb2.CacheChanges()])

    def _put_snapshot(self, parts: Sequence[engine_pb2.CacheChanges]) -> None:
        self._parts.clear()
        hashes = sum(len(change.stored.hashes) for part in parts for change in part.changes)
        num_unknown = sum(part.num_unknown_blocks for part in parts)
        for number, part in enumerate(parts):
            self._snapshot.append(
                CacheBatch(part.changes, number, len(parts), hashes // HASH_BYTES, num_unknown)
            )


class CacheFeeds:
    """The feeds of all subscribers of this frontend."""

    def __init__(self, cores: Callable[[], Sequence[Core]]) -> None:
        """cores: returns those of the moment."""
        self._cores = cores
        self._numbers = itertools.count(1)
        self._feeds: list[CacheFeed] = []

    @contextmanager
    def open(self) -> Iterator[CacheFeed]:
        """Yields a feed; the cores are watched for it until the context ends."""
        feed = CacheFeed(self._cores, self._numbers)
        self._feeds.append(feed)
        try:
            yield feed
        finally:
            self._feeds.remove(feed)
            feed.restart()

    def put(self, core: Core, message: engine_pb2.CacheChanges) -> None:
        """Hands a core's message to its feed. A watch of none is ended: its end did not reach the core."""
        for feed in self._feeds:
            if feed.knows(message.watch):
                return feed.put(message)
        core.watch_cache(message.watch, ends=True)

    def restart(self) -> None:
        """A core has come, gone, or been replaced: what was told of the caches does not hold."""
        for feed in self._feeds:
            feed.restart()
