"""Turns at a few processes: tenants one after another, and none of them at more than half of the processes.

One job may take seconds, and one tenant may have thousands of them.
"""

import asyncio
from collections import Counter, deque


class TenantTurns:
    """Belongs to the event loop's thread. Without authentication tenants are not told apart: all jobs are in
    one line."""

    def __init__(self, num_turns: int) -> None:
        """num_turns: how many jobs run at once."""
        self._num_free = num_turns
        self._most = max(1, num_turns // 2)
        self._running = Counter[str]()
        self._waiting: dict[str | None, deque[asyncio.Future[None]]] = {}  # the next tenant first

    async def begin(self, tenant: str | None) -> None:
        """Waits for a turn; end() ends it."""
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
        self._num_free += 1
        if tenant is not None:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
        self._admit()

    def _admit(self) -> None:
        """Gives free turns to the tenants that waited longest since their last ones."""
        while self._num_free and (ready := [tenant for tenant in self._waiting if self._may_run(tenant)]):
            tenant = ready[0]
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind all others
            if not turn.done():
                self._num_free -= 1
                if tenant is not None:
                    self._running[tenant] += 1
                turn.set_result(None)

    def _may_run(self, tenant: str | None) -> bool:
        return tenant is None or self._running[tenant] < self._most
