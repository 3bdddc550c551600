"""Leases: blocks of the prefix cache that another engine core reads.

    LeaseBlocks     the cached ones of the blocks that it names are held, so that they are not allocated again
    LeasedBlocks    the answer, once the plans that were in flight are executed: then the blocks are written
    EndLease        they are freed; the answer says whether they were held all the time

A lease ends by itself two seconds after its last sign of the reader, and at once when this core runs short of
blocks: what was read is not used then. So no block is kept for a reader that is gone, and no request of this
core waits for one.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.context import CoreContext
from engine_core.kv_cache.prefix_cache import HASH_BYTES
from pagewire.internal.v1.engine_pb2 import (
    EndLease,
    EngineMessage,
    LeaseBlocks,
    LeasedBlocks,
    LeaseEnded,
    RenewLease,
)
from pagewire.ipc.columns import pack_u32

LEASE_S = 2.0
NO_BLOCK = (1 << 32) - 1
MOST_LEASED = 0.5
"""Share of the pool that leases may hold."""
SPARE_BLOCKS = 2
"""Free blocks for each running sequence, below which leases end."""

_Key = tuple[bytes, int]
"""The reader's connection, and its number for the lease."""


@dataclass(slots=True)
class _Lease:
    contents: dict[int, bytes]  # by block; they are held
    answer: LeasedBlocks | None  # None: it was sent
    step: int  # plans up to this one were in flight when it began
    expires: float


class Leases:
    """The leases of other cores on blocks of this one."""

    def __init__(self, context: CoreContext, address: str) -> None:
        """address: where the worker sends blocks; empty: nowhere, and nothing is leased."""
        self._context, self._address = context, address
        self._scheduler = context.scheduler
        self._tables = context.scheduler.tables
        self._leases: dict[_Key, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def handle(self, reader: bytes, message: LeaseBlocks | RenewLease | EndLease) -> None:
        """Handles a message of another core. reader: identity of its socket."""
        key, now = (reader, message.lease), self._context.clock()
        lease = self._leases.get(key)
        if isinstance(message, LeaseBlocks):
            if lease is None:
                self._begin(key, message, now)
        elif isinstance(message, RenewLease):
            if lease is not None:
                lease.expires = now + LEASE_S
        else:
            stands = lease is not None and lease.answer is None and self._is_right(lease)
            self._end(key)
            ended = LeaseEnded(lease=message.lease, stands=stands)
            self._context.send(reader, EngineMessage(lease_ended=ended))

    def drop(self, reader: bytes) -> None:
        """Ends the leases of a reader that is gone."""
        for key in [key for key in self._leases if key[0] == reader]:
            self._end(key)

    def review(self, now: float) -> None:
        """Answers for blocks that are written by now, and ends leases. To be called before each plan."""
        if not self._leases:
            return
        if self._is_short():
            for key in list(self._leases):
                self._end(key)
        in_flight = self._scheduler.in_flight
        executed = in_flight[0].plan.step - 1 if in_flight else self._scheduler.step
        for key, lease in list(self._leases.items()):
            if lease.expires <= now:
                self._end(key)
            elif lease.answer is not None and lease.step <= executed:
                self._context.send(key[0], EngineMessage(leased_blocks=lease.answer))
                lease.answer = None

    def _begin(self, key: _Key, message: LeaseBlocks, now: float) -> None:
        """Holds the blocks; where that is too many, or the worker sends none, only answers."""
        cache, pool = self._scheduler.prefix_cache, self._scheduler.pool
        contents = message.contents
        names = [contents[at : at + HASH_BYTES] for at in range(0, len(contents), HASH_BYTES)]
        found = [pool.find(name) for name in names] if self._address and cache.moves else [None] * len(names)
        held = {block: name for block, name in zip(found, names, strict=True) if block is not None}
        num_held = sum(len(lease.contents) for lease in self._leases.values())
        if num_held + len(held) > MOST_LEASED * pool.num_blocks:
            found, held = [None] * len(names), {}
        blocks = pack_u32([NO_BLOCK if block is None else block for block in found])
        answer = LeasedBlocks(lease=message.lease, blocks=blocks, address=self._address)
        if not held:
            self._context.send(key[0], EngineMessage(leased_blocks=answer))
            return
        self._tables.hold(key, list(held))
        self._leases[key] = _Lease(held, answer, self._scheduler.step, now + LEASE_S)

    def _end(self, key: _Key) -> None:
        if self._leases.pop(key, None) is not None:
            self._tables.release(key)

    def _is_right(self, lease: _Lease) -> bool:
        """Whether nothing has shown since that a block may be wrong, and the cache was not emptied."""
        content = self._scheduler.pool.content
        return all(content(block) == name for block, name in lease.contents.items())

    def _is_short(self) -> bool:
        """Whether what this core computes may need the blocks."""
        scheduler = self._scheduler
        return scheduler.waits_for_held or scheduler.pool.num_free < SPARE_BLOCKS * len(scheduler.running)
