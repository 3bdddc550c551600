"""Decodes large request messages one by one, tenants in turns, so that the event loop goes on between them.

gRPC decodes every message that has arrived before the event loop does anything else. A message of four
million token ids takes 25 ms: a few hundred of them at once stopped all streams of a frontend for longer
than its watchdog waits.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from frontend.auth.caller import Caller
from frontend.concurrency_limits import ConcurrencyLimits
from frontend.tenant_turns import TenantTurns

LARGE_MESSAGE_BYTES = 128 << 10
"""Smaller messages, which are decoded in less than a millisecond, are decoded as they come."""
PAUSE = 2.0
"""Between two large messages, in times of what decoding the first one took: two thirds of the loop's time
remain for everything else."""
BYTES_PER_SECOND = 64 << 20
"""Of large messages, at most: receiving them takes time of the other threads."""


class LargeMessages:
    """The large messages that wait for their decoding. Belongs to the event loop's thread."""

    def __init__(self, limits: ConcurrencyLimits) -> None:
        """limits: count the bytes that wait, as bytes that are tokenized."""
        self._limits = limits
        self._turns = TenantTurns(1)

    async def decode(self, decode: Callable[[bytes], Any], data: bytes, caller: Caller | None) -> Any:
        """Returns decode(data), in the caller's turn. Raises FrontendFull, and what decode() raises."""
        tenant = caller.tenant if caller is not None else None
        with self._limits.reading(len(data), caller):
            await self._turns.begin(tenant)
            began = perf_counter()
            try:
                return decode(data)
            finally:
                pause = max(PAUSE * (perf_counter() - began), len(data) / BYTES_PER_SECOND)
                asyncio.get_running_loop().call_later(pause, self._turns.end, tenant)
