"""Turns of requests that score: shared by a tenant's calls, and few beside other tenants."""

import asyncio
from contextlib import AsyncExitStack

from frontend.auth.caller import ANONYMOUS, Caller, Terms
from frontend.call.limits import ConcurrencyLimits
from frontend.streams.pooling import BESIDE_OTHERS, GroupTurns

ALICE = Caller("alice", terms=Terms(max_requests=16))
BOB = Caller("bob")


async def begin(turns: GroupTurns, caller: Caller, count: int) -> tuple[list[asyncio.Task[None]], list[int]]:
    """Requests that run until they are cancelled; which of them have begun, in order."""
    begun: list[int] = []

    async def one(number: int) -> None:
        async with turns.turn(caller):
            begun.append(number)
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks, begun


async def cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)


async def test_calls_of_a_tenant_share_what_its_quota_allows():
    turns = GroupTurns(lambda caller: False)
    first, begun = await begin(turns, ALICE, 10)
    second, more = await begin(turns, ALICE, 10)
    assert len(begun) == 10 and more == list(range(6))
    await cancel(first[0], second[7])  # one that runs, and one that waits
    assert more == list(range(7))
    await cancel(*first[1:])
    assert more == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    await cancel(*(task for task in second if not task.done()))
    assert not turns._callers


async def test_few_run_while_others_have_calls():
    limits = ConcurrencyLimits(0, 0)
    turns = GroupTurns(limits.serves_others)
    async with AsyncExitStack() as calls:
        calls.enter_context(limits.call(ALICE))
        alone, begun = await begin(turns, ALICE, 8)
        assert len(begun) == 8
        calls.enter_context(limits.call(BOB))
        beside, more = await begin(turns, ALICE, 8)
        assert not more
        await cancel(*alone)
        assert len(more) == BESIDE_OTHERS
        _, of_bob = await begin(turns, BOB, 8)
        assert len(of_bob) == BESIDE_OTHERS
    await cancel(beside[0])
    assert len(more) == 8, "the others have left"


async def test_a_turn_that_is_granted_to_a_request_that_is_cancelled_goes_on():
    turns = GroupTurns(lambda caller: True)
    running, begun = await begin(turns, BOB, BESIDE_OTHERS + 2)
    running[0].cancel()
    await asyncio.sleep(0)  # its turn is granted, and the next request has not run yet
    await cancel(running[BESIDE_OTHERS])
    assert begun[-1] == BESIDE_OTHERS + 1


async def test_without_tenants_none_waits():
    _, begun = await begin(GroupTurns(lambda caller: True), ANONYMOUS, 100)
    assert len(begun) == 100
