"""Turns at what few may use at once: the tenant that was served least is next, none above its share.

One job may take seconds, and one tenant may have thousands of them. Jobs are ordered by start-time fair
queueing (Goyal, Vin and Cheng 1996): a turn begins at the end of the tenant's turn before, counted in the
costs of jobs, and not before the latest turn that has begun. The earliest one is next.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

MOST_KNOWN = 4096
"""Tenants whose turns are remembered while they wait for none; beyond, all of these begin anew."""


class TenantTurns:
    """Belongs to the event loop's thread. Without authentication tenants are not told apart: all jobs are in
    one line, and no tenant's share bounds them."""

    def __init__(self, num_turns: int | None, share: Callable[[str], int] | None = None) -> None:
        """num_turns: how many jobs run at once; None: any number. share: returns how many of them may be one
        tenant's now; None: all."""
        self._num_free = num_turns
        self._share = share
        self._running = Counter[str]()
        self._waiting: dict[str | None, dict[asyncio.Future[None], float]] = {}  # with the costs
        self._next: dict[str | None, float] = {}  # when the next turn of each tenant begins, in costs
        self._now = 0.0  # when the latest turn has begun

    async def begin(self, tenant: str | None, cost: float = 1) -> None:
        """Waits for a turn; end() ends it. cost: of the job, beside those of others."""
        if tenant not in self._waiting:
            self._next[tenant] = max(self._next.get(tenant, 0.0), self._now)
            if self.has_room(tenant):
                self._start(tenant, cost)
                return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, {})[turn] = cost
        self.admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(tenant, turn)
            else:  # its turn came as its client left
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
        self.admit()

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

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for their turns."""
        return sum(map(len, self._waiting.values()))

    def _start(self, tenant: str | None, cost: float) -> None:
        if self._num_free is not None:
            self._num_free -= 1
        if tenant is not None:
            self._running[tenant] += 1
        self._now = max(self._now, self._next[tenant])
        self._next[tenant] += cost
        if len(self._next) > len(self._waiting) + MOST_KNOWN:
            self._next = {each: self._next[each] for each in self._waiting}

    def _remove(self, tenant: str | None, turn: "asyncio.Future[None]") -> None:
        """Removes a turn from the line of its tenant. Idempotent."""
        line = self._waiting.get(tenant, {})
        line.pop(turn, None)
        if not line:
            self._waiting.pop(tenant, None)

    def admit(self) -> None:
        """Gives free turns to the tenants that were served least. To be called where a share has grown."""
        while self._num_free != 0 and (tenants := [each for each in self._waiting if self.has_room(each)]):
            tenant = min(tenants, key=self._next.__getitem__)
            turn, cost = next(iter(self._waiting[tenant].items()))
            self._remove(tenant, turn)
            if not turn.done():
                self._start(tenant, cost)
                turn.set_result(None)


class TenantJobs:
    """Jobs that hold their turns until they are done, also when their callers leave."""

    def __init__(self, turns: TenantTurns) -> None:
        self.turns = turns
        self.running: set[asyncio.Future[Any]] = set()

    async def run(
        self,
        start: Callable[[], "asyncio.Future[T]"],
        tenant: str | None,
        cost: float,
        patience: float | None = None,
    ) -> T:
        """Returns the result of start() in the tenant's turn. A caller that is cancelled before it starts
        nothing. Raises TimeoutError when the job is not done within `patience` seconds, and ends its turn."""
        await self.turns.begin(tenant, cost)
        job = start()
        self.running.add(job)
        job.add_done_callback(lambda job: self._end(job, tenant))
        await asyncio.wait([job], timeout=patience)
        if job.done():
            return job.result()
        self._end(job, tenant)
        raise TimeoutError

    def _end(self, job: "asyncio.Future[Any]", tenant: str | None) -> None:
        """Ends the turn of a job, once."""
        if job.done() and not job.cancelled():
            job.exception()  # its caller may have left
        if job in self.running:
            self.running.remove(job)
            self.turns.end(tenant)
