"""The drain that has a way back, on a clock of the test's own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from frontend.call.serving_state import DRAINING, SERVING, ServingState
from frontend.errors import Draining, ServiceError, ShuttingDown
from frontend.rpc.shutdown import Drain

DELAY = 5.0


class Clock:
    """call_later() of a loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.new_event_loop()

    def call_later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + seconds, action, (), self._loop)
        self._timers.append(timer)
        return timer

    def pass_to(self, now: float) -> None:
        self.now = now
        due = [timer for timer in self._timers if timer.when() <= now]
        self._timers = [timer for timer in self._timers if timer.when() > now]
        for timer in sorted(due, key=asyncio.TimerHandle.when):
            if not timer.cancelled():
                timer._run()

    def close(self) -> None:
        self._loop.close()


@dataclass
class Requests:
    num_requests: int = 3
    ends: list[ServiceError] = field(default_factory=list)

    def end_all(self, error: ServiceError) -> None:
        self.ends.append(error)


@pytest.fixture
async def clock():
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture
def state(clock: Clock) -> ServingState:
    state = ServingState()
    state.set_engine(SERVING)
    return state


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def drain(state: ServingState, requests: Requests, clock: Clock) -> Drain:
    return Drain(state, requests, DELAY, clock.call_later)


def refuses(state: ServingState) -> bool:
    try:
        state.require_open()
    except Draining:
        return True
    return False


def test_health_speaks_before_anything_is_refused(drain, state, requests, clock):
    assert drain.begin(None) == 3
    assert state.state == DRAINING and not state.serves and not refuses(state)
    clock.pass_to(DELAY - 0.1)
    assert not refuses(state)
    clock.pass_to(DELAY)
    assert refuses(state)
    clock.pass_to(1e6)
    assert not requests.ends  # without a timeout they may take as long as they like


def test_there_is_a_way_back(drain, state, requests, clock):
    drain.begin(60)
    clock.pass_to(10)
    drain.resume()
    assert state.serves and not refuses(state)
    clock.pass_to(1e6)
    assert state.serves and not refuses(state) and not requests.ends
    drain.resume()  # of what does not drain: nothing happens


def test_a_way_back_before_the_first_refusal(drain, state, clock):
    drain.begin(None)
    drain.resume()
    clock.pass_to(1e6)
    assert state.serves and not refuses(state)


@pytest.mark.parametrize("timeout", [0.0, 2.0, 60.0])
def test_a_timeout_ends_what_is_left(drain, state, requests, clock, timeout):
    drain.begin(timeout)
    clock.pass_to(timeout)
    assert refuses(state)
    (error,) = requests.ends
    assert isinstance(error, Draining)


def test_the_last_timeout_counts(drain, requests, clock):
    drain.begin(10)
    clock.pass_to(9)
    drain.begin(10)
    clock.pass_to(18)
    assert not requests.ends
    drain.begin(None)
    clock.pass_to(1e6)
    assert not requests.ends


def test_asking_again_does_not_put_off_the_refusal(drain, state, clock):
    drain.begin(None)
    clock.pass_to(DELAY - 1)
    drain.begin(None)
    clock.pass_to(DELAY)
    assert refuses(state)


def test_an_engine_that_comes_and_goes_does_not_end_it(drain, state):
    drain.begin(None)
    state.set_engine(SERVING)
    assert state.state == DRAINING


def test_a_shutdown_has_no_way_back(drain, state, requests, clock):
    drain.begin(10)
    drain.close()
    for ask in (drain.resume, lambda: drain.begin(None)):
        with pytest.raises(ShuttingDown):
            ask()
    clock.pass_to(1e6)
    assert not requests.ends and state.state == DRAINING
