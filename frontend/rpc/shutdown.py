"""Shuts a frontend down without refusing a request that could be served."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from frontend.call.serving_state import ServingState
from frontend.errors import Draining
from frontend.rpc.drain import Drain, Requests
from frontend.rpc.listening.listener import close_listener

SETTLE_S = 0.2
"""Seconds for calls on connections that were made just before the listening socket was closed."""
FLUSH_S = 0.3
"""Seconds for the final messages of streams that outlast the grace period."""


class Stoppable(Protocol):
    """A server of one port."""

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds. May be called again with a
        shorter grace."""


class Shutdown:
    """run() once; hurry() at any time."""

    def __init__(self, state: ServingState, drain: Drain, requests: Requests, *servers: Stoppable) -> None:
        self._state = state
        self._drain = drain
        self._requests = requests
        self._servers = servers
        self._hurry = asyncio.Event()

    async def run(self, ports: Sequence[int], delay: float, grace: float) -> None:
        """Fails health checks; serves everything for `delay` seconds; closes the listening sockets; tells
        clients to leave (GOAWAY); gives streams `grace` seconds to end; ends the rest with UNAVAILABLE, so
        that their clients continue elsewhere."""
        self._drain.close()
        self._state.drain()
        await self._pause(delay)
        await asyncio.gather(*map(close_listener, ports))
        if delay:
            await self._pause(SETTLE_S)
        self._state.close()
        stopping = asyncio.create_task(self._stop(grace + 2 * FLUSH_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            self._requests.end_all(Draining())
            await asyncio.wait({stopping}, timeout=FLUSH_S)
            await self._stop(0)
        await stopping

    def hurry(self) -> None:
        """Skips all remaining waits."""
        self._hurry.set()

    async def _stop(self, grace: float) -> None:
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)
