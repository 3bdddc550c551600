"""Decodes large request messages one by one, tenants in turns, so that the event loop goes on between them.

gRPC decodes every message that has arrived before the event loop does anything else. A message of four
million token ids takes 25 ms: a few hundred of them at once stopped all streams of a frontend for longer
than its watchdog waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from frontend.auth.caller import Caller
from frontend.concurrency_limits import ConcurrencyLimits

LARGE_MESSAGE_BYTES = 128 << 10
"""Smaller messages, which are decoded in less than a millisecond, are decoded as they come."""
PAUSE = 2.0
"""Between two large messages, in times of what decoding the first one took: two thirds of the loop's time
remain for everything else."""


class LargeMessages:
    """The large messages that wait for their decoding. Belongs to the event loop's thread."""

    def __init__(self, limits: ConcurrencyLimits) -> None:
        """limits: count the bytes that wait, as bytes that are tokenized."""
        self._limits = limits
        self._waiting: dict[str | None, deque[asyncio.Future[None]]] = {}
        self._is_free = True

    async def decode(self, decode: Callable[[bytes], Any], data: bytes, caller: Caller | None) -> Any:
        """Returns decode(data), in the caller's turn. Raises FrontendFull, and what decode() raises."""
        with self._limits.reading(len(data), caller):
            await self._turn(caller.tenant if caller is not None else None)
            began = perf_counter()
            try:
                return decode(data)
            finally:
                pause = PAUSE * (perf_counter() - began)
                asyncio.get_running_loop().call_later(pause, self._next)

    async def _turn(self, tenant: str | None) -> None:
        if self._is_free:
            self._is_free = False
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as its client left
                self._next()
            raise

    def _next(self) -> None:
        """Gives the turn to the tenant that waited longest since its last one."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_free = True
