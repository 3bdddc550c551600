"""How many messages of a tenant are received at once follows from their sizes."""

import asyncio

from frontend.auth.caller import Caller
from frontend.receiving_slots import FIRST_SIZE, MAX_HELD_BYTES, MAX_RECEIVED_BYTES, ReceivingSlots


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
