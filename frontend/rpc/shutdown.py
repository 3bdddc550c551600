"""The end of a frontend, such that nobody who could be served is turned away."""

import asyncio
import contextlib
from typing import Protocol

from frontend.errors import Draining
from frontend.rpc.drain import Drain, Requests
from frontend.rpc.listener import close_listener
from frontend.state import ServingState

SETTLE_S = 0.2
"""For calls on connections that were made just before the listening socket was closed."""
FLUSH_S = 0.3
"""For the last words of streams that outlast their grace."""


class Stoppable(Protocol):
    """A gRPC server."""

    async def stop(self, grace: float) -> None:
        """Takes no calls any more; those that run have `grace` seconds. May be called again, to hurry."""


class Shutdown:
    """run() once; hurry() whenever somebody loses patience."""

    def __init__(self, state: ServingState, drain: Drain, requests: Requests, server: Stoppable) -> None:
        self._state = state
        self._drain = drain
        self._requests = requests
        self._server = server
        self._hurry = asyncio.Event()

    async def run(self, port: int, delay: float, grace: float) -> None:
        """Health says NOT_SERVING; nothing is refused for `delay` seconds; no new connection is taken;
        clients are told to leave (GOAWAY); streams have `grace` seconds to end; what is left ends as
        UNAVAILABLE, so that its client continues elsewhere."""
        self._drain.close()
        self._state.drain()
        await self._pause(delay)
        await close_listener(port)
        if delay:
            await self._pause(SETTLE_S)
        self._state.close()
        stopping = asyncio.create_task(self._server.stop(grace + 2 * FLUSH_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            self._requests.end_all(Draining())
            await asyncio.wait({stopping}, timeout=FLUSH_S)
            await self._server.stop(0)
        await stopping

    def hurry(self) -> None:
        """Whatever is waited for has been waited for long enough."""
        self._hurry.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)
