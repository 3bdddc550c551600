"""How a frontend stops accepting requests, without refusing one that could be served: for a while, on
AdminService.Drain, or for good, on a signal.

Both begin alike: health checks fail at once, and for `delay` seconds requests are still served, so that load
balancers notice before a client gets an error.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from frontend.call.serving_state import ServingState
from frontend.errors import Draining, ShuttingDown
from frontend.rpc.listener import close_listener
from frontend.streams.request_registry import RequestRegistry

log = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Seconds for calls on connections that were made just before the listening socket was closed."""
FLUSH_S = 0.3
"""Seconds for the final messages of streams that outlast the grace period."""
Timer = asyncio.TimerHandle
CallLater = Callable[[float, Callable[[], None]], Timer]


class Drain:
    """A drain on request of an operator, which can be undone."""

    def __init__(
        self,
        state: ServingState,
        requests: RequestRegistry,
        delay: float,
        call_later: CallLater | None = None,
    ) -> None:
        """delay: seconds between the failing health check and the first refusal. call_later: the event
        loop's."""
        self._state = state
        self._requests = requests
        self._delay = delay
        self._call_later = call_later
        self._is_over = False
        self._refusal: Timer | None = None
        self._deadline: Timer | None = None

    def begin(self, timeout: float | None) -> int:
        """Starts a drain, or changes the timeout of a running one. timeout: seconds until requests in flight
        end with Draining; None: never. Returns the number of requests in flight. Raises ShuttingDown."""
        self._require_running()
        if self._refusal is None:
            log.info("draining")
            self._state.drain()
            self._refusal = self._after(self._delay, self._state.refuse)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if timeout is None else self._after(timeout, self._time_out)
        return self._requests.num_requests

    def resume(self) -> None:
        """Serves again. Raises ShuttingDown."""
        self._require_running()
        if self._refusal is not None:
            log.info("serving again")
        self._forget()
        self._state.resume()

    def close(self) -> None:
        """Disables begin() and resume(), because the process shuts down."""
        self._is_over = True
        self._forget()

    def _require_running(self) -> None:
        if self._is_over:
            raise ShuttingDown

    def _forget(self) -> None:
        """Cancels both timers."""
        for timer in (self._refusal, self._deadline):
            if timer is not None:
                timer.cancel()
        self._refusal = self._deadline = None

    def _after(self, seconds: float, action: Callable[[], None]) -> Timer:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        return call_later(seconds, action)

    def _time_out(self) -> None:
        self._state.refuse()  # also where the timeout is shorter than the delay
        self._requests.end_all(Draining())


class Stoppable(Protocol):
    """A server of one port."""

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds. May be called again with a
        shorter grace."""


class Shutdown:
    """run() once; hurry() at any time."""

    def __init__(
        self, state: ServingState, drain: Drain, requests: RequestRegistry, *servers: Stoppable
    ) -> None:
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
