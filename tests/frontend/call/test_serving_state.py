"""The serving state: what health checks report, and when requests are refused."""

import asyncio

import pytest

from frontend.call.serving_state import DRAINING, FAILED, SERVING, STARTING, ServingState
from frontend.errors import Draining
from tests.patience import soon


def test_a_drain_fails_health_checks_before_it_refuses():
    state = ServingState()
    assert state.state == STARTING and not state.serves
    state.set_engine(SERVING)
    assert state.serves
    state.drain()
    assert state.state == DRAINING and not state.serves and not state.leaves
    state.require_open()
    state.refuse()
    assert state.leaves
    with pytest.raises(Draining):
        state.require_open()
    state.resume()
    assert state.serves and not state.leaves
    state.require_open()


def test_the_end_of_the_server_cannot_be_undone():
    state = ServingState()
    state.set_engine(FAILED)
    state.close()
    state.resume()
    assert state.closes and state.leaves and state.engine == FAILED


async def test_every_waiter_sees_a_change():
    state = ServingState()
    waiters = [asyncio.ensure_future(state.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    state.set_engine(STARTING)  # no change
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    state.set_engine(SERVING)
    await soon(asyncio.gather(*waiters))


async def test_a_change_before_the_waiter_runs_is_seen():
    """A task runs its coroutine a turn of the loop later; the state must not change unseen in between."""
    state = ServingState()
    waiter = asyncio.ensure_future(state.changed())
    state.set_engine(SERVING)
    await soon(waiter)
    waiting = asyncio.ensure_future(state.unless_closed(asyncio.Event().wait()))
    await asyncio.sleep(0)  # it has read the state, and the task that waits for its change has not begun
    state.close()
    with pytest.raises(Draining):
        await soon(waiting)


async def test_a_caller_that_leaves_leaves_no_task():
    state, before = ServingState(), asyncio.all_tasks()
    waiting = asyncio.ensure_future(state.unless_closed(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
