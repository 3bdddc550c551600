"""How a frontend stops accepting requests: temporarily, on AdminService.Drain, or for good, on a signal.

Both begin alike: health checks fail at once, and for `delay` seconds requests are still served, so that load
balancers notice before a client gets an error.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from frontend.call.serving_state import ServingState
from frontend.errors import Draining, ServiceError, ShuttingDown

log = logging.getLogger(__name__)


class Requests(Protocol):
    """The part of frontend.streams.request_registry.RequestRegistry that a drain needs."""

    @property
    def num_requests(self) -> int:
        """Requests in flight."""

    def end_all(self, error: ServiceError) -> None:
        """Ends all of them with this error."""


Timer = asyncio.TimerHandle
CallLater = Callable[[float, Callable[[], None]], Timer]


class Drain:
    """A drain on request of an operator, which can be undone."""

    def __init__(
        self, state: ServingState, requests: Requests, delay: float, call_later: CallLater | None = None
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
