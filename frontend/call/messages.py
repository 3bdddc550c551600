"""Bounds the request messages that are received and decoded at once, over gRPC and over HTTP together.

What has arrived of a message is in memory before its size is known, and it may be the most of
--max-request-bytes. So a slot stands for as many bytes, and all of them together have a bound, of which each
tenant may have half of what the others leave. The sizes of the messages that a tenant sends then say how many
of its next ones are received at once.

gRPC decodes every message that has arrived before the event loop does anything else. A message of four
million token ids takes 25 ms: a few hundred of them at once stopped all streams of a frontend for longer
than its watchdog waits. So large messages are decoded one by one, tenants in turns, and the event loop goes
on between them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from frontend.auth.caller import Caller
from frontend.call.limits import ConcurrencyLimits
from frontend.call.turns import TenantTurns

T = TypeVar("T")

NO_TENANT = ""
"""Whose slots the callers of public methods share."""
MAX_HELD_BYTES = 512 << 20
"""Bytes of all messages of tenants that are being received by a frontend, if each is as large as it may be;
but two messages are always received."""
MAX_RECEIVED = 64
"""Request messages of one tenant that are received at once."""
MAX_RECEIVED_BYTES = 32 << 20
"""Bytes of them, if they are as large as those before; but one message is always received."""
FIRST_SIZE = 1 << 20
"""Bytes that the messages of a tenant are expected to have while none has come."""
LARGE_MESSAGE_BYTES = 128 << 10
"""Smaller messages, which are decoded in less than a millisecond, are decoded as they come."""
SMALL_MESSAGE_BYTES = 16 << 10
"""Messages of more are checked in turns, too: one of 80 KB may have 16,000 parts, which takes 0.1 s."""
PAUSE = 2.0
"""Between two large messages, in times of what work on the first one took: two thirds of the loop's time
remain for everything else."""
BYTES_PER_SECOND = 64 << 20
"""Limit for large messages: receiving them takes time of the other threads."""


class ReceivingSlots:
    """Counts the messages that are being received, by tenant. Belongs to the event loop's thread."""

    def __init__(self, max_request_bytes: int) -> None:
        """max_request_bytes: of one message."""
        self._turns = TenantTurns(max(2, MAX_HELD_BYTES // max_request_bytes), self._share)
        self._sizes: dict[str, int] = {}
        """Bytes that the next message of a tenant is expected to have; of tenants that have slots."""

    async def take(self, tenant: str) -> None:
        """Waits until the tenant may have another slot, first come, first served, and takes it."""
        await self._turns.begin(tenant)

    def has_room(self, tenant: str) -> bool:
        """Returns whether the tenant may have another slot now."""
        return self._turns.has_room(tenant)

    def num_held(self, tenant: str) -> int:
        """Returns how many slots the tenant holds."""
        return self._turns.num_running(tenant)

    def arrived(self, tenant: str, size: int) -> None:
        """Notes the bytes of a message that has arrived: the next ones are expected to have as many, or half
        of what was expected of this one if that is more. More of those that wait may be received then."""
        self._sizes[tenant] = max(size, self._sizes.get(tenant, FIRST_SIZE) // 2)
        self._turns.admit()

    def give_back(self, tenant: str) -> None:
        """Gives back a slot that take() took."""
        self._turns.end(tenant)
        if not self.num_held(tenant):
            self._sizes.pop(tenant, None)

    @asynccontextmanager
    async def receiving(self, caller: Caller) -> AsyncIterator[Callable[[int], None]]:
        """Holds a slot within the block, which gets a function that it tells the bytes that have arrived.
        Without authentication tenants are not told apart, and no call waits."""
        if caller.tenant is None:
            yield lambda size: None
            return
        await self.take(caller.tenant)
        try:
            yield partial(self.arrived, caller.tenant)
        finally:
            self.give_back(caller.tenant)

    def _share(self, tenant: str) -> int:
        """Returns how many slots the tenant may hold: never more than it leaves to others."""
        expected, left = self._sizes.get(tenant, FIRST_SIZE), self._turns.num_free
        assert left is not None
        return max(1, min(MAX_RECEIVED, left, MAX_RECEIVED_BYTES // max(expected, 1)))


class LargeMessages:
    """The large messages that wait for work of the event loop's thread, to which this belongs."""

    def __init__(self, limits: ConcurrencyLimits) -> None:
        """limits: count the bytes that wait, as bytes that are tokenized."""
        self._limits = limits
        self._turns = TenantTurns(1)

    async def decode(self, decode: Callable[[bytes], Any], data: bytes, caller: Caller | None) -> Any:
        """Returns decode(data), in the caller's turn. Raises FrontendFull, and what decode() raises."""
        with self._limits.reading(len(data), caller):
            return await self._in_turn(partial(decode, data), len(data), caller, len(data) / BYTES_PER_SECOND)

    async def run(self, function: Callable[[], T], size: int, caller: Caller | None) -> T:
        """Returns function(), for a message of `size` bytes in the caller's turn, unless it is small."""
        return function() if size < SMALL_MESSAGE_BYTES else await self._in_turn(function, size, caller)

    async def _in_turn(
        self, function: Callable[[], T], size: int, caller: Caller | None, pause: float = 0.0
    ) -> T:
        """Returns function(). pause: seconds until the next turn, at least."""
        tenant = caller.tenant if caller is not None else None
        await self._turns.begin(tenant, size)
        began = perf_counter()
        try:
            return function()
        finally:
            pause = max(PAUSE * (perf_counter() - began), pause)
            asyncio.get_running_loop().call_later(pause, self._turns.end, tenant)
