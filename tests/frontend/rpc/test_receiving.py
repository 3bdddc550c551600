"""A tenant's request messages are received a few at a time."""

import asyncio

from frontend.auth.caller import Caller
from frontend.call.messages import MAX_HELD_BYTES, ReceivingSlots
from frontend.rpc.call_context import decoded
from frontend.rpc.interceptors.admission import Receiving
from frontend.telemetry.counters import Counters


async def test_a_call_gives_its_slot_back_once_and_at_its_end_at_the_latest() -> None:
    slots, counters = ReceivingSlots(MAX_HELD_BYTES // 2), Counters()
    task = asyncio.current_task()
    assert task is not None
    first, second = (Receiving(task, counters, slots) for _ in range(2))
    await first.begin(Caller("alice"), 60.0)
    waiting = asyncio.create_task(second.begin(Caller("alice"), 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()

    async def behavior(request: object, context: object) -> object:
        return request

    assert await first.wrap(behavior)("request", None) == "request"
    await waiting
    first.end()
    assert not counters.abandoned and slots.num_held("alice") == 1
    second.end()
    assert counters.abandoned == 1 and not slots.num_held("alice")


async def test_a_large_message_holds_its_slot_until_it_is_decoded() -> None:
    slots, task = ReceivingSlots(MAX_HELD_BYTES // 2), asyncio.current_task()
    assert task is not None
    call, counters = Receiving(task, Counters(), slots), Counters()
    held = list[int]()

    async def behavior(request: object, context: object) -> None:
        held.append(slots.num_held("alice"))
        decoded()
        held.append(slots.num_held("alice"))

    await call.begin(Caller("alice"), 60.0)
    await call.wrap(behavior)(b"large", None)
    call.end()
    assert held == [1, 0] and not slots.num_held("alice") and not counters.abandoned


async def test_without_authentication_no_call_waits() -> None:
    slots, task = ReceivingSlots(MAX_HELD_BYTES // 2), asyncio.current_task()
    assert task is not None
    calls = [Receiving(task, Counters(), slots) for _ in range(3)]
    for call in calls:
        await call.begin(Caller(None), 60.0)
    assert not slots.num_held("")
    for call in calls:
        call.end()


async def test_a_request_that_does_not_come_ends_its_call() -> None:
    receiving = []

    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        receiving.append(Receiving(task, Counters(), ReceivingSlots(MAX_HELD_BYTES // 2)))
        await receiving[0].begin(Caller("alice"), 0.0)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    receiving[0].end()
