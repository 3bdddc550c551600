"""Virtual time: the order of things, and which code may ask for the time."""

import asyncio
import time

import pytest

from tests.simulation.clock import VirtualLoop, virtual_time


def never() -> bool:
    return False


def test_time_jumps_to_what_comes_next() -> None:
    loop = VirtualLoop()
    seen: list[tuple[str, float]] = []
    for when, name in [(3.0, "c"), (1.0, "a"), (1.0, "b"), (5.0, "later")]:
        loop.call_at(when, lambda name=name: seen.append((name, loop.time())))
    loop.call_at(2.0, seen.append, ("cancelled", 0.0)).cancel()
    loop.run(4.0, never)
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 3.0)]
    assert loop.time() == 4.0 and loop.num_events == 3


def test_a_waiting_thread_is_woken_at_once() -> None:
    loop = VirtualLoop()
    inbox: list[int] = []
    for when in (1.0, 2.0):
        loop.call_at(when, inbox.append, 1)
    loop.run(float("inf"), lambda: bool(inbox))
    assert loop.time() == 1.0 and len(inbox) == 1


def test_tasks_sleep_and_time_out_in_virtual_time() -> None:
    loop = VirtualLoop()
    seen: list[object] = []

    async def patient() -> None:
        seen.append(asyncio.get_running_loop() is loop)
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 60)
        seen.append(time.monotonic())

    with virtual_time(loop):
        loop.call_soon(lambda: seen.append(asyncio.create_task(patient())))
        loop.run(4000.0, never)
        assert time.time_ns() == 1_700_004_000 * 10**9
        with pytest.raises(AssertionError, match="blocking sleep"):
            time.sleep(1)
    assert seen[1:] == [True, 3660.0]
    assert time.monotonic() != 4000.0


def test_nothing_goes_wrong_unseen() -> None:
    loop = VirtualLoop()
    loop.call_soon(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.run(1.0, never)
    with pytest.raises(AssertionError, match="nothing will ever happen"):
        loop.run(float("inf"), never)
