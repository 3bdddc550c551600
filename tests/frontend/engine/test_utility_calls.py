"""Calls to a core and their replies."""

import asyncio
from types import SimpleNamespace

import pytest

from frontend.engine.core import UtilityCalls
from frontend.engine.core_list import ask_all
from frontend.errors import EngineNotReady
from pagewire.internal.v1 import engine_pb2

LOAD = engine_pb2.Utility(get_load=engine_pb2.GetLoad())


def core(send, epoch: int = 1, differs: str = "") -> SimpleNamespace:
    return SimpleNamespace(epoch=epoch, differs=differs, utility_calls=UtilityCalls(send))


def answering() -> SimpleNamespace:
    """A core that replies at once."""

    def send(message: engine_pb2.FrontendMessage) -> bool:
        result = engine_pb2.UtilityResult(call_id=message.utility.call_id)
        asyncio.get_running_loop().call_soon(made.utility_calls.take, result)
        return True

    made = core(send)
    return made


async def test_replies_are_matched_by_call_id():
    sent: list[int] = []
    calls = UtilityCalls(lambda message: sent.append(message.utility.call_id) or True)
    first, second = (asyncio.ensure_future(calls.ask(LOAD)) for _ in range(2))
    await asyncio.sleep(0)
    for call_id in (*reversed(sent), 99):
        calls.take(engine_pb2.UtilityResult(call_id=call_id))
    assert [(await first).call_id, (await second).call_id] == sent and not len(calls)
    assert not LOAD.call_id, "the caller's message is unchanged"


async def test_no_reply_is_not_ready(monkeypatch):
    with pytest.raises(EngineNotReady):
        await UtilityCalls(lambda _: False).ask(LOAD)
    calls = UtilityCalls(lambda _: True)
    lost = asyncio.ensure_future(calls.ask(LOAD))
    await asyncio.sleep(0)
    calls.drop()
    with pytest.raises(EngineNotReady, match="went away"):
        await lost
    monkeypatch.setattr("frontend.engine.core.ANSWER", 0.01)
    with pytest.raises(EngineNotReady, match="does not answer"):
        await calls.ask(LOAD)
    assert not len(calls)


async def test_cores_that_are_away_or_differ_are_not_asked():
    used, away, other = answering(), core(lambda _: False, epoch=0), core(lambda _: False, differs="dtype")
    assert [each for each, _ in await ask_all([used, away, other], LOAD)] == [used]
    with pytest.raises(EngineNotReady):
        await ask_all([away, other], LOAD)


async def test_one_reply_is_enough_unless_all_must_answer():
    used, broken = answering(), core(lambda _: False)
    assert len(await ask_all([used, broken], LOAD)) == 1
    with pytest.raises(EngineNotReady):
        await ask_all([used, broken], LOAD, all_must_answer=True)
