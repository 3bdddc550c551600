"""How a frontend stops taking requests: for a while, on AdminService.Drain, or for good, on a signal.

Both begin alike: health says NOT_SERVING at once, and for `delay` seconds nothing is refused, so that
balancers notice before anybody gets an error.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from frontend.errors import Draining, ServiceError, ShuttingDown
from frontend.state import ServingState

log = logging.getLogger(__name__)


class Requests(Protocol):
    """What frontend.streams.request_registry.InFlight tells and does."""

    @property
    def num_requests(self) -> int:
        """In flight."""

    def end_all(self, error: ServiceError) -> None:
        """Ends them by this error."""


Timer = asyncio.TimerHandle
CallLater = Callable[[float, Callable[[], None]], Timer]


class Drain:
    """The drain that an operator asks for: it has a way back."""

    def __init__(
        self, state: ServingState, requests: Requests, delay: float, call_later: CallLater | None = None
    ) -> None:
        """delay: seconds between the word of health and the first refusal. call_later: the loop's."""
        self._state = state
        self._requests = requests
        self._delay = delay
        self._call_later = call_later
        self._is_over = False
        self._refusal: Timer | None = None
        self._deadline: Timer | None = None

    def begin(self, timeout: float | None) -> int:
        """Starts it, or gives a running one another timeout: seconds until what is still in flight ends
        by Draining; None: never. Returns how many requests are in flight. Raises ShuttingDown."""
        self._require_way_back()
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
        self._require_way_back()
        if self._refusal is not None:
            log.info("serving again")
        self._forget()
        self._state.resume()

    def close(self) -> None:
        """The process is on its way out: this has no say any more."""
        self._is_over = True
        self._forget()

    def _require_way_back(self) -> None:
        if self._is_over:
            raise ShuttingDown

    def _forget(self) -> None:
        """Whatever was to happen later does not."""
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
