"""A tenant's request messages are received a few at a time."""

import asyncio

from frontend.auth.caller import Caller
from frontend.receiving_slots import ReceivingSlots
from frontend.rpc.receiving import Receiving
from frontend.telemetry.counters import Counters


async def test_slots_are_a_tenants_own_and_pass_to_the_next_call() -> None:
    slots, order = ReceivingSlots(2), []

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
    assert not slots._held and not slots._waiting


async def test_a_call_gives_its_slot_back_once_and_at_its_end_at_the_latest() -> None:
    slots, counters = ReceivingSlots(1), Counters()
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
    assert not counters.abandoned and slots._held == {"alice": 1}
    second.end()
    assert counters.abandoned == 1 and not slots._held


async def test_without_authentication_no_call_waits() -> None:
    slots, task = ReceivingSlots(1), asyncio.current_task()
    assert task is not None
    calls = [Receiving(task, Counters(), slots) for _ in range(3)]
    for call in calls:
        await call.begin(Caller(None), 60.0)
    assert not slots._held
    for call in calls:
        call.end()


async def test_a_request_that_does_not_come_ends_its_call() -> None:
    receiving = []

    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        receiving.append(Receiving(task, Counters(), ReceivingSlots(1)))
        await receiving[0].begin(Caller("alice"), 0.0)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    receiving[0].end()
