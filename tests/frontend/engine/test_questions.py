"""Where a request is in flight, when there are several cores."""

import asyncio
from random import Random

import pytest

from frontend.engine import core_list
from frontend.engine.core import ANYWHERE, Routing
from frontend.engine.dispatcher import choose
from pagewire.internal.v1 import engine_pb2
from tests.frontend.engine.test_client import FakeSink, next_of
from tests.frontend.test_several_engines import House, house

SESSION = Routing(session_id="s")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for the answer of a core for as long as a busy machine takes."""
    monkeypatch.setattr(core_list, "FIND_S", 30.0)


def know(made: House, *ranks: int) -> None:
    """These cores have the request in flight."""
    for rank, engine in enumerate(made.engines):
        found = engine_pb2.FoundRequest(in_flight=rank in ranks)
        engine.answers["find_request"] = engine_pb2.UtilityResult(found=found)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_request_is_found_where_it_runs(rank):
    async with house() as made:
        know(made, rank)
        routing = await made.client.questions.where("x", SESSION)
        assert routing == Routing(rank=rank, session_id="s")
        assert made.engines[rank].asked[0].find_request.request_id == "x"
        made.submit(FakeSink(), routing)
        await next_of(made.engines[rank].requests)


async def test_a_request_that_no_core_has_goes_where_it_would():
    async with house() as made:
        know(made)
        assert await made.client.questions.where("x", SESSION) == SESSION


async def test_calls_of_a_request_that_no_core_has_yet_meet_at_one():
    """They may begin in the same moment, at different frontends, and be sent again when a core dies."""
    async with house(3) as made:
        know(made)
        chosen = []
        for name in range(32):  # addresses differ in each run: 3 ** -31 for all at one core
            routing = await made.client.questions.where(str(name), ANYWHERE)
            at = {choose(made.client.cores, routing, Random(seed)).rank for seed in range(8)}
            after = {choose(made.client.cores[1:], routing, Random(seed)).rank for seed in range(8)}
            assert len(at) == len(after) == 1 and (at == after or at == {0})
            chosen += at
        assert len({*chosen}) > 1


async def test_one_core_is_not_asked():
    async with house(1) as made:
        know(made, 0)
        assert await made.client.questions.where("x", ANYWHERE) == Routing(session_id="x")
        assert not made.engines[0].asked


async def test_a_core_that_is_silent_or_dies_keeps_no_request_waiting(monkeypatch):
    async with house(3) as made:
        know(made, 2)

        async def silence(utility: engine_pb2.Utility) -> None:
            pass

        made.engines[0]._answer = silence
        assert await made.client.questions.where("x", ANYWHERE) == Routing(rank=2, session_id="x")
        know(made)
        monkeypatch.setattr(core_list, "FIND_S", 0.02)
        assert await made.client.questions.where("x", SESSION) == SESSION
        monkeypatch.setattr(core_list, "FIND_S", 30.0)
        asking = asyncio.create_task(made.client.questions.where("x", SESSION))
        await asyncio.sleep(0)
        await made.stop(0)
        assert await asking == SESSION
