"""Clients that do not take what is sent to them, and clients that only take their time."""

import asyncio
from collections.abc import Callable

import pytest

from frontend.call.write_timeout import WriteTimeouts
from frontend.errors import SlowConsumer
from tests.patience import soon


class Client:
    """Takes messages when a test says so."""

    def __init__(self) -> None:
        self.taken: list[object] = []
        self._room = asyncio.Event()

    async def send_initial_metadata(self, metadata: object) -> None:
        """They need no room."""

    async def write(self, message: object) -> None:
        """Waits for room."""
        await self._room.wait()
        self.taken.append(message)

    def read_on(self) -> None:
        self._room.set()

    def pause(self) -> None:
        self._room.clear()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def handler(timeouts: WriteTimeouts, client: Client, messages: int) -> "asyncio.Task[int]":
    """Writes so many messages; how many of them were written."""

    async def handle() -> int:
        done = 0
        with timeouts.writer(client.write) as writer:
            for number in range(messages):
                await writer.write(number)
                done += 1
        return done

    return asyncio.ensure_future(handle())


async def turn() -> None:
    """Lets every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Callable[[], float]:
    return Clock()


async def test_a_client_that_reads_nothing_is_ended(clock: Clock) -> None:
    timeouts = WriteTimeouts(60.0, clock)
    stalled, reading = Client(), Client()
    reading.read_on()
    tasks = [handler(timeouts, stalled, 1), handler(timeouts, reading, 3)]
    await turn()
    assert await tasks[1] == 3
    clock.now += 59
    timeouts.give_up()
    await turn()
    assert not tasks[0].done()
    clock.now += 1
    timeouts.give_up()
    with pytest.raises(SlowConsumer):
        await tasks[0]
    assert len(timeouts) == 0 and tasks[0].cancelling() == 0


async def test_a_client_that_pauses_gets_everything(clock: Clock) -> None:
    """Each message has its own time."""
    timeouts, client = WriteTimeouts(60.0, clock), Client()
    task = handler(timeouts, client, 4)
    for _ in range(4):
        await turn()
        clock.now += 50
        timeouts.give_up()
        client.read_on()
        await turn()
        client.pause()
    client.read_on()
    assert await task == 4 and client.taken == [0, 1, 2, 3]


async def test_a_handler_that_waits_for_tokens_is_not_slow(clock: Clock) -> None:
    timeouts, client = WriteTimeouts(60.0, clock), Client()
    client.read_on()
    more = asyncio.Event()

    async def handle() -> None:
        with timeouts.writer(client.write) as writer:
            await writer.write(1)
            await more.wait()

    task = asyncio.ensure_future(handle())
    await turn()
    clock.now += 1000
    timeouts.give_up()
    more.set()
    await task


async def test_a_client_that_goes_is_not_slow(clock: Clock) -> None:
    """Its handler is cancelled, as ever; also when both happen at once."""
    timeouts, client = WriteTimeouts(60.0, clock), Client()
    for both in (False, True):
        task = handler(timeouts, client, 1)
        await turn()
        if both:
            clock.now += 60
            timeouts.give_up()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_looks_by_itself(clock: Clock) -> None:
    timeouts = WriteTimeouts(0.01, clock)
    timeouts.start()
    task = handler(timeouts, Client(), 1)
    await turn()
    clock.now += 1
    with pytest.raises(SlowConsumer):
        await soon(task)
    await timeouts.stop()


async def test_without_a_timeout_there_is_no_task() -> None:
    timeouts = WriteTimeouts(0.0)
    timeouts.start()
    assert len(asyncio.all_tasks()) == 1
    await timeouts.stop()
