"""Turns at what few may use at once: tenants one after another, and none of them at more than its share.

One job may take seconds, and one tenant may have thousands of them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TenantTurns:
    """Belongs to the event loop's thread. Without authentication tenants are not told apart: all jobs are in
    one line, and no tenant's share bounds them."""

    def __init__(self, num_turns: int | None, share: Callable[[str], int] | None = None) -> None:
        """num_turns: how many jobs run at once; None: any number. share: returns how many of them may be one
        tenant's now; None: all."""
        self._num_free = num_turns
        self._share = share
        self._running = Counter[str]()
        self._waiting: dict[str | None, deque[asyncio.Future[None]]] = {}  # the next tenant first

    async def begin(self, tenant: str | None) -> None:
        """Waits for a turn; end() ends it."""
        if tenant not in self._waiting and self.has_room(tenant):
            self._start(tenant)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as its client left
                self.end(tenant)
            raise

    def end(self, tenant: str | None) -> None:
        """Ends a turn."""
        if self._num_free is not None:
            self._num_free += 1
        if tenant is not None:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
        self._admit()

    @asynccontextmanager
    async def turn(self, tenant: str | None) -> AsyncIterator[None]:
        """Waits for a turn, in order of arrival within the tenant, and holds it within the block."""
        await self.begin(tenant)
        try:
            yield
        finally:
            self.end(tenant)

    def has_room(self, tenant: str | None) -> bool:
        """Returns whether there is a free turn, and the tenant's share of them has room."""
        if self._num_free == 0:
            return False
        return tenant is None or self._share is None or self._running[tenant] < self._share(tenant)

    @property
    def num_free(self) -> int | None:
        """Turns that nothing has; None: there is any number."""
        return self._num_free

    def num_running(self, tenant: str) -> int:
        """Returns how many turns are the tenant's now."""
        return self._running[tenant]

    def _start(self, tenant: str | None) -> None:
        if self._num_free is not None:
            self._num_free -= 1
        if tenant is not None:
            self._running[tenant] += 1

    def _admit(self) -> None:
        """Gives free turns to the tenants that waited longest since their last ones."""
        while self._num_free != 0:
            try:
                tenant = next(tenant for tenant in self._waiting if self.has_room(tenant))
            except StopIteration:
                return
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind all others
            if not turn.done():
                self._start(tenant)
                turn.set_result(None)
