"""Tells frontends what the prefix cache holds, and how it changes from step to step."""

from collections.abc import Callable
from itertools import islice

from engine_core.kv_cache.cache_log import encode
from engine_core.kv_cache.prefix_cache import PrefixCache
from pagewire.internal.v1.engine_pb2 import CacheChanges, EngineMessage, WatchCache

PART_BLOCKS = 1024
"""Blocks in a part of a snapshot, about 90 KB with 16 tokens each: parts of a million blocks stay below the
number of messages that a connection holds."""


class CacheWatches:
    """The watches of all frontends. Without one, no step does anything for them."""

    def __init__(self, cache: PrefixCache, send: Callable[[bytes, EngineMessage], None]) -> None:
        """send: takes (frontend, message)."""
        self._cache = cache
        self._send = send
        self._watches: dict[tuple[bytes, int], None] = {}

    def take(self, frontend: bytes, message: WatchCache) -> None:
        """Begins a watch, with a snapshot, or ends it."""
        if message.ends:
            self._watches.pop((frontend, message.watch), None)
            return
        self.publish()  # what has changed so far is for the other watches: the snapshot has it
        log = self._cache.logged()
        blocks = log.snapshot()
        num_parts = max(-(-len(log) // PART_BLOCKS), 1)
        for part in range(num_parts):
            changes = CacheChanges(
                watch=message.watch,
                num_parts=num_parts,
                changes=encode(islice(blocks, PART_BLOCKS)),
                num_unknown_blocks=self._cache.num_blocks - len(log) if part == 0 else 0,
            )
            self._send(frontend, EngineMessage(cache_changes=changes))
        self._watches[frontend, message.watch] = None

    def drop(self, frontend: bytes) -> None:
        """Ends the watches of a frontend that is gone, or has forgotten them."""
        for key in [key for key in self._watches if key[0] == frontend]:
            del self._watches[key]

    def publish(self) -> None:
        """Sends what has changed since the last call."""
        if self._cache.log is None:
            return
        changes = self._cache.log.take()
        if not changes or not self._watches:
            return
        encoded = encode(changes)
        for frontend, watch in self._watches:
            message = CacheChanges(watch=watch, changes=encoded)
            self._send(frontend, EngineMessage(cache_changes=message))
