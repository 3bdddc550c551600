"""Bounds how many request messages of a tenant are received at once, over gRPC and over HTTP together."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from frontend.auth.caller import Caller

NO_TENANT = ""
"""Whose slots the callers of public methods share."""
MAX_RECEIVED = 64
"""Request messages of one tenant that are received at once."""


class ReceivingSlots:
    """Counts the messages that are being received, by tenant. Belongs to the event loop's thread."""

    def __init__(self, size: int = MAX_RECEIVED) -> None:
        """size: of each tenant."""
        self._size = size
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, tenant: str) -> None:
        """Waits until the tenant has a slot left, first come, first served, and takes it."""
        if self._held[tenant] < self._size:
            self._held[tenant] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as its client left
                self.give_back(tenant)
            raise

    def has_room(self, tenant: str) -> bool:
        """Returns whether take() would not wait."""
        return self._held[tenant] < self._size

    @asynccontextmanager
    async def receiving(self, caller: Caller) -> AsyncIterator[None]:
        """Holds a slot within the block. Without authentication tenants are not told apart, and no call
        waits."""
        if caller.tenant is None:
            yield
            return
        await self.take(caller.tenant)
        try:
            yield
        finally:
            self.give_back(caller.tenant)

    def give_back(self, tenant: str) -> None:
        """Gives back a slot that take() took."""
        waiting = self._waiting.get(tenant)
        while waiting:
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[tenant]
            if not turn.done():
                turn.set_result(None)
                return
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
