"""Messages that a tenant may send at once follow from their sizes; large ones are decoded one by one."""

import asyncio
from functools import partial

import pytest

from frontend.auth.caller import Caller
from frontend.call.limits import ConcurrencyLimits
from frontend.call.messages import (
    FIRST_SIZE,
    MAX_HELD_BYTES,
    MAX_RECEIVED_BYTES,
    SMALL_MESSAGE_BYTES,
    LargeMessages,
    ReceivingSlots,
)
from frontend.errors import FrontendFull


async def test_slots_are_a_tenants_own_and_pass_to_the_next_call() -> None:
    slots, order = ReceivingSlots(MAX_HELD_BYTES // 4), []

    async def call(name: str, tenant: str) -> None:
        await slots.take(tenant)
        order.append(name)

    calls = {name: asyncio.create_task(call(name, name[0])) for name in ("a1", "a2", "a3", "a4", "a5", "b1")}
    await asyncio.sleep(0)
    assert order == ["a1", "a2", "b1"]
    calls["a3"].cancel()
    await asyncio.sleep(0)
    slots.give_back("a")  # to a4, whose client leaves in the same moment: it is a5's
    calls["a4"].cancel()
    await calls["a5"]
    assert order == ["a1", "a2", "b1", "a5"]
    for tenant in ("a", "a", "b"):
        slots.give_back(tenant)
    assert not slots.num_held("a") and not slots.num_held("b")


async def taken(slots: ReceivingSlots, tenant: str) -> int:
    """Takes all slots that the tenant has left, and returns how many it holds then."""
    while slots.has_room(tenant):
        await slots.take(tenant)
    return slots.num_held(tenant)


async def test_tenants_with_large_messages_receive_fewer_at_once() -> None:
    slots = ReceivingSlots(1 << 20)
    assert await taken(slots, "a") == MAX_RECEIVED_BYTES // FIRST_SIZE == 32
    slots.arrived("a", 4 << 20)
    for _ in range(25):
        slots.give_back("a")
        assert await taken(slots, "a") < 32, "the slots that are too many are not taken again"
    assert await taken(slots, "a") == 8
    slots.arrived("a", MAX_RECEIVED_BYTES + 1)
    slots.give_back("a")
    assert not slots.has_room("a") and await taken(slots, "b") == 32
    for _ in range(7):
        slots.give_back("a")
    await slots.take("a")  # nothing was held: what had come is forgotten
    assert await taken(slots, "a") == 32


async def test_small_messages_let_more_in_and_none_is_too_large() -> None:
    slots = ReceivingSlots(1 << 20)
    await slots.take("a")
    slots.arrived("a", 1 << 30)
    slots.give_back("a")
    await slots.take("a")
    slots.arrived("a", 1 << 30)
    assert not slots.has_room("a"), "one at a time"
    for _ in range(6):
        slots.arrived("a", 10)
    assert await taken(slots, "a") == 2
    slots.arrived("a", 10)
    assert await taken(slots, "a") == 4
    for _ in range(30):
        slots.arrived("a", 0)
    assert await taken(slots, "a") == 64


async def test_a_message_that_is_smaller_than_expected_lets_those_in_that_wait() -> None:
    """They waited until another message was decoded, which may be long after it has arrived."""
    slots = ReceivingSlots(1 << 20)
    assert await taken(slots, "a") == 32
    waiting = asyncio.create_task(slots.take("a"))
    await asyncio.sleep(0)
    slots.arrived("a", MAX_RECEIVED_BYTES // 33)
    await waiting
    assert slots.num_held("a") == 33 and not slots.has_room("a")


async def test_tenants_leave_one_another_as_much_as_they_take() -> None:
    """However many there are, and whatever they have sent before, messages of the largest size fit."""
    slots = ReceivingSlots(MAX_HELD_BYTES // 32)
    held = []
    for tenant in "abcdef":
        await slots.take(tenant)
        for _ in range(30):
            slots.arrived(tenant, 10)
        held.append(await taken(slots, tenant))
    assert held == [16, 8, 4, 2, 1, 1]
    assert not slots.has_room("g")
    slots.give_back("a")
    assert slots.has_room("g") and not slots.has_room("a")


async def test_two_messages_are_received_however_large_they_may_be() -> None:
    slots = ReceivingSlots(MAX_HELD_BYTES * 2)
    assert [await taken(slots, tenant) for tenant in "ab"] == [1, 1]


async def test_a_block_says_what_has_arrived() -> None:
    slots = ReceivingSlots(1 << 20)
    async with slots.receiving(Caller("a")) as arrived:
        arrived(MAX_RECEIVED_BYTES)
        assert not slots.has_room("a")
    async with slots.receiving(Caller(None)) as arrived:
        arrived(MAX_RECEIVED_BYTES)
        assert not slots.num_held("a")


ALICE, BOB = Caller("alice"), Caller("bob")


def limits(max_bytes: int = 0) -> ConcurrencyLimits:
    return ConcurrencyLimits(0, max_bytes)


async def test_work_on_a_small_message_waits_for_no_turn() -> None:
    """And that on a larger one of a tenant comes before more of another's."""
    messages, order = LargeMessages(limits()), list[str]()
    await messages._turns.begin("other")
    for name, caller in (("a1", ALICE), ("a2", ALICE), ("b1", BOB)):
        work = messages.run(partial(order.append, name), SMALL_MESSAGE_BYTES, caller)
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
    await messages.run(partial(order.append, "small"), SMALL_MESSAGE_BYTES - 1, ALICE)
    assert order == ["small"] and messages._turns.num_waiting == 3
    messages._turns.end("other")
    await task
    assert order == ["small", "a1", "b1"]


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
    assert order[::2] == [b"a1", b"b1", b"none", b"a2", b"a3"]
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
