"""Turns of the requests that score continuations: how many of a tenant run at once.

One call stands for up to `--max-continuations` requests, each of which costs the event loop as much as any
other. A tenant's calls share their turns: as many as its quotas allow, since more would only be refused, and
few while other tenants have calls here, whose messages would have to wait for all that begin together.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from frontend.auth.caller import Caller, Terms
from frontend.validation.rules import MAX_COUNT

BESIDE_OTHERS = 4
"""Requests of a tenant that score at once while other tenants have calls at this frontend."""


@dataclass(slots=True)
class _Line:
    """The requests of one tenant."""

    num_running: int = 0
    waiting: deque["asyncio.Future[None]"] = field(default_factory=deque)


class ScoringTurns:
    """Belongs to the event loop's thread. Without authentication tenants are not told apart, and all begin
    at once."""

    def __init__(self, serves_others: Callable[[Caller], bool]) -> None:
        """serves_others: whether tenants other than the caller's have calls now."""
        self._serves_others = serves_others
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Waits for a turn, in order of arrival, and holds it within the block."""
        if caller.tenant is None:
            yield
            return
        line = self._lines.setdefault(caller.tenant, _Line())
        await self._wait(line, caller)
        try:
            yield
        finally:
            self._end(line, caller)

    async def _wait(self, line: _Line, caller: Caller) -> None:
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self._admit(line, caller)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(line, caller)
            raise

    def _end(self, line: _Line, caller: Caller) -> None:
        line.num_running -= 1
        self._admit(line, caller)
        if not line.num_running and not line.waiting and caller.tenant is not None:
            self._lines.pop(caller.tenant, None)

    def _admit(self, line: _Line, caller: Caller) -> None:
        most = _most_at_once(caller)
        if self._serves_others(caller):
            most = min(most, BESIDE_OTHERS)
        while line.waiting and line.num_running < most:
            turn = line.waiting.popleft()
            if not turn.done():
                line.num_running += 1
                turn.set_result(None)


def _most_at_once(caller: Caller) -> int:
    """Returns how many requests of one sequence the caller's quotas allow at once."""
    terms = caller.terms or Terms()
    return min(quota or MAX_COUNT for quota in (terms.max_requests, terms.max_sequences))
