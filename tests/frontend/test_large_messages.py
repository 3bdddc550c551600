"""Large messages are decoded one by one, tenants in turns."""

import asyncio

import pytest

from frontend.auth.caller import Caller
from frontend.concurrency_limits import ConcurrencyLimits
from frontend.errors import FrontendFull
from frontend.large_messages import LargeMessages

ALICE, BOB = Caller("alice"), Caller("bob")


def limits(max_bytes: int = 0) -> ConcurrencyLimits:
    return ConcurrencyLimits(0, max_bytes)


async def test_tenants_take_turns_and_the_loop_goes_on_between() -> None:
    messages, order = LargeMessages(limits()), []
    loop = asyncio.get_running_loop()

    def decode(data: bytes) -> bytes:
        order.append(data)
        loop.call_soon(order.append, b"others")
        return data + b"!"

    calls = [
        asyncio.create_task(messages.decode(decode, data, caller))
        for data, caller in [(b"a1", ALICE), (b"a2", ALICE), (b"a3", ALICE), (b"b1", BOB), (b"none", None)]
    ]
    assert await asyncio.gather(*calls) == [b"a1!", b"a2!", b"a3!", b"b1!", b"none!"]
    assert order[::2] == [b"a1", b"a2", b"b1", b"none", b"a3"]
    assert set(order[1::2]) <= {b"others"}


async def test_a_turn_outlives_clients_that_leave_and_messages_that_cannot_be_read() -> None:
    messages = LargeMessages(limits())

    def broken(data: bytes) -> bytes:
        raise ValueError

    first = asyncio.create_task(messages.decode(broken, b"", ALICE))
    waiting = asyncio.create_task(messages.decode(bytes, b"", ALICE))
    last = asyncio.create_task(messages.decode(bytes, b"last", BOB))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(ValueError):
        await first
    assert await last == b"last"
    assert await messages.decode(bytes, b"free", None) == b"free"


async def test_bytes_that_wait_are_counted_and_given_back() -> None:
    counted = limits(max_bytes=100)
    messages = LargeMessages(counted)
    assert await messages.decode(bytes, bytes(40), ALICE) == bytes(40)  # the next ones wait
    callers = (ALICE, ALICE, BOB)
    calls = [asyncio.create_task(messages.decode(bytes, bytes(40), caller)) for caller in callers]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [bytes, FrontendFull, bytes]
    assert not counted.num_bytes
