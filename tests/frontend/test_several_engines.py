"""Several engine cores behind one frontend, without gRPC: real clients, fake cores, real sockets between."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from random import Random

import pytest

from frontend.call.serving_state import FAILED, SERVING, ServingState
from frontend.engine import client as engine_client
from frontend.engine.client import EngineClient
from frontend.engine.core import ANYWHERE, Routing
from frontend.engine.core_list import GivenAddresses
from frontend.errors import EngineDead, EngineNotReady, EngineRefused
from pagewire.internal.v1 import engine_pb2
from tests.frontend.engine.test_client import FakeSink, next_of, reaches
from tests.frontend.fakes import FakeEngine, Output, engine_address
from tests.patience import soon

OVERLOADED = 8, "QUEUE_FULL", "full"


class Sink(FakeSink):
    """One that has received these tokens."""

    missing_prompt_logprobs = None

    def __init__(self, *tokens: int) -> None:
        super().__init__()
        self.tokens = list(tokens)
        self.is_aborted = False

    def delivered(self):
        return [(0, self.tokens, False)]

    def abort(self) -> None:
        self.is_aborted = True
        self.event.set()


class House:
    """A client and its cores."""

    def __init__(self, client: EngineClient, state: ServingState, engines: list[FakeEngine]) -> None:
        self.client, self.state, self.engines = client, state, engines

    def submit(self, sink: FakeSink, routing: Routing = ANYWHERE, request_id: str = "x") -> int:
        request = engine_pb2.AddRequest(request_id=request_id, sampling={"n": 1}, age_us=7)
        return self.client.submit(request, sink, routing)

    async def all_serve(self) -> None:
        async def wait() -> None:
            while not all(core.serves for core in self.client.cores):
                await asyncio.sleep(0.005)

        await soon(wait())

    async def stop(self, rank: int) -> None:
        """Its frontend notices."""
        await self.engines[rank].stop()
        while self.client.cores[rank].epoch:
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def house(count: int = 2, start: bool = True, file: Path | None = None) -> AsyncIterator[House]:
    """file: where the frontend finds the addresses; the last of them is not in it yet."""
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(engine_address()) for _ in range(count)]
        engines = [FakeEngine(address, epoch=1 + rank) for rank, address in enumerate(addresses)]
        state = ServingState()
        given = addresses
        if file is not None:
            file.write_text("\n".join(["# the engines", *addresses[:-1], "", ""]))
            given = [f"@{file}"]
        client = EngineClient(GivenAddresses(given), state, 30.0, random=Random(6))
        made = House(client, state, engines)
        client.start()
        try:
            if start:
                for engine in engines:
                    await engine.start()
                await made.all_serve()
            yield made
        finally:
            await client.close()
            for engine in engines:
                await engine.close()


async def test_one_core_is_enough_to_serve():
    async with house(start=False) as made:
        await made.engines[1].start()
        await reaches(made.state, SERVING)
        assert [core.serves for core in made.client.cores] == [False, True]
        sink = FakeSink()
        handle = made.submit(sink)
        assert (await next_of(made.engines[1].requests)).handle == handle


async def test_requests_go_where_there_is_least_to_do():
    async with house() as made:
        for _ in range(10):
            made.submit(FakeSink())
        assert [len(core.in_flight) for core in made.client.cores] == [5, 5]


async def test_requests_go_where_their_adapter_is_loaded():
    """As the engines say. One that starts again holds none."""
    digests = [b"%032d" % number for number in range(16)]
    async with house() as made:

        def chosen() -> list[int]:
            ranks = []
            for digest in digests:
                handle = made.submit(FakeSink(), Routing(adapter=digest))
                ranks += [core.rank for core in made.client.cores if handle in core.in_flight]
                made.client.release(handle)
            return ranks

        async def says(rank: int, **change: bytes) -> None:
            table = engine_pb2.AdapterTable(is_change=True, **change)
            before = set(made.client.cores[rank].held_adapters)
            await made.engines[rank].tell_adapters(table)
            while made.client.cores[rank].held_adapters == before:
                await asyncio.sleep(0)

        hashed = chosen()
        assert {*hashed} == {0, 1}
        for rank in (0, 1):
            await says(rank, held_digests=b"".join(digests))
            assert chosen()[1:] == [rank] * 15
            await says(rank, dropped_digests=b"".join(digests[1:]))
        assert chosen() == hashed, "both have the first one, and none the others"
        await says(0, dropped_digests=digests[0])
        assert chosen() == [1, *hashed[1:]]
        await made.stop(1)
        made.engines[1].epoch += 10
        await made.engines[1].start()
        await made.all_serve()
        assert not made.client.cores[1].held_adapters and chosen() == hashed


async def test_what_other_frontends_have_there_counts(monkeypatch):
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.01)
    monkeypatch.setattr(engine_client, "SILENCE", inf)
    async with house() as made:
        made.engines[0].load.running_requests, made.engines[0].load.waiting_requests = 2, 2
        while made.client.cores[0].load == 0:
            await asyncio.sleep(0.005)
        for _ in range(4):
            made.submit(FakeSink())
        assert [len(core.in_flight) for core in made.client.cores] == [0, 4]


async def test_by_rank_and_by_session():
    """A rank that is away, or whose turn a session has not, is taken by another core."""
    async with house(3) as made:
        for _ in range(3):
            made.submit(FakeSink(), Routing(rank=2))
        assert [len(core.in_flight) for core in made.client.cores] == [0, 0, 3]
        (mine,) = {_core_of(made, Routing(session_id="s")) for _ in range(4)}
        await made.stop(mine)
        (other,) = {_core_of(made, Routing(session_id="s")) for _ in range(4)}
        assert other != mine and _core_of(made, Routing(rank=mine)) != mine


def _core_of(made: House, routing: Routing) -> int:
    before = [len(core.in_flight) for core in made.client.cores]
    made.submit(FakeSink(), routing)
    after = [len(core.in_flight) for core in made.client.cores]
    return next(rank for rank in range(len(before)) if after[rank] > before[rank])


async def test_a_dead_cores_requests_go_on_at_another_one_at_once():
    """With what they have, and with their age; the others stay where they are."""
    async with house() as made:
        mine, other = Sink(1, 2, 3), Sink()
        made.submit(mine, Routing(rank=0), "mine")
        made.submit(other, Routing(rank=1), "other")
        await next_of(made.engines[1].requests)
        await made.engines[0].stop()
        again = await next_of(made.engines[1].requests)
        assert again.request_id == "mine" and again.again and again.age_us > 7
        assert [bytes(part.token_ids) for part in again.delivered] == [b"\1\0\0\0\2\0\0\0\3\0\0\0"]
        assert made.state.serves and len(made.client.journal) == 2
        await made.engines[1].output(again.handle, Output([4], 3, position=3))
        await mine.heard()
        assert mine.outputs == [(0, 3, [4], 3, 0)] and other.outputs == []
        assert made.engines[1].aborts.empty()


async def test_when_all_are_dead_requests_wait_for_the_first_that_comes():
    async with house() as made:
        sink = Sink(1)
        ticket = made.submit(sink, Routing(rank=0))
        await made.stop(0)
        assert made.state.serves and not made.client.waits(ticket)
        await made.stop(1)
        assert made.client.waits(ticket)
        await reaches(made.state, FAILED)
        with pytest.raises(EngineNotReady):
            made.client.require()
        made.engines[0].epoch = 9
        await made.engines[0].start()
        await reaches(made.state, SERVING)
        while not (await next_of(made.engines[0].requests)).again:
            pass  # what it was sent before it died
        assert not made.client.waits(ticket)


@pytest.mark.parametrize("overloaded", [OVERLOADED, (8, "MEDIA_MEMORY_FULL", "full")])
async def test_a_core_that_is_overloaded_is_not_the_only_one(overloaded):
    """Another one is asked; if that has no time either, the client hears of it. It was never lost: bounds
    hold for it."""
    async with house(3) as made:
        sink = Sink()
        made.submit(sink, Routing(rank=1))
        first = await next_of(made.engines[1].requests)
        await made.engines[1].fail(first.handle, *overloaded)
        while not (asked := [engine for engine in made.engines if not engine.requests.empty()]):
            await asyncio.sleep(0.005)
        second = asked[0].requests.get_nowait()
        assert asked[0] is not made.engines[1] and second.handle != first.handle and not second.again
        await asked[0].fail(second.handle, *overloaded)
        await sink.heard()
        assert isinstance(sink.error, EngineRefused) and sink.error.reason == overloaded[1]
        assert len(made.client.journal) == 0


async def test_an_adapter_that_one_core_lacks_is_looked_for_at_all_others():
    """Its files have changed: a core that still holds it takes the request."""
    changed = 9, "ADAPTER_CHANGED", "adapter cannot be loaded any more"
    async with house(3) as made:
        for last_has_it in (True, False):
            sink, left = Sink(), list(made.engines)
            made.submit(sink, Routing(rank=2))
            while left:
                while not (asked := [engine for engine in left if not engine.requests.empty()]):
                    await asyncio.sleep(0.005)
                (engine,) = asked
                request = engine.requests.get_nowait()
                left.remove(engine)
                if left or not last_has_it:
                    await engine.fail(request.handle, *changed)
                else:
                    await engine.output(request.handle, Output((5,), 1))
            await sink.heard()
            if last_has_it:
                assert sink.error is None
            else:
                assert isinstance(sink.error, EngineRefused) and sink.error.reason == "ADAPTER_CHANGED"
            assert len(made.client.journal) == 0


async def test_what_only_one_core_can_know_is_not_asked_elsewhere():
    async with house() as made:
        sink = Sink()
        made.submit(sink, Routing(rank=0))
        request = await next_of(made.engines[0].requests)
        await made.engines[0].fail(request.handle, 8, "QUOTA_EXCEEDED", "no")
        await sink.heard()
        assert isinstance(sink.error, EngineRefused) and made.engines[1].requests.empty()


async def test_a_request_that_was_aborted_on_its_way():
    async with house() as made:
        sink = Sink()
        made.submit(sink, Routing(rank=0))
        request = await next_of(made.engines[0].requests)
        await made.engines[0].fail(request.handle, 10, "REQUEST_ABORTED", "was aborted on its way")
        await sink.heard()
        assert sink.is_aborted and sink.error is None and len(made.client.journal) == 0


async def test_a_core_with_another_model_is_not_used(caplog):
    """The first core's model counts, also while that core is away."""
    async with house(start=False) as made:
        made.engines[1]._facts["vocab_size"] = 99
        await made.engines[0].start()
        await reaches(made.state, SERVING)
        with caplog.at_level(logging.ERROR):
            await made.engines[1].start()
            while not made.client.cores[1].differs:
                await asyncio.sleep(0.005)
        assert made.client.cores[1].differs == "vocab_size 99 instead of 512"
        assert "is not used: it has vocab_size 99 instead of 512" in caplog.text
        assert made.client.require().model.vocab_size == 512
        assert [load.rank for load in await made.client.questions.loads()] == [0]
        await made.stop(0)
        await reaches(made.state, FAILED)
        caplog.clear()


async def test_all_cores_get_another_model():
    """As when they are replaced one by one. Requests that wait for the old model fail."""
    async with house() as made:
        sink = Sink(1)
        made.submit(sink, Routing(rank=0))
        for rank in (1, 0):
            await made.stop(rank)
            made.engines[rank].epoch += 10
            made.engines[rank]._facts["max_model_len"] = 100
            await made.engines[rank].start()
            if rank == 1:
                while not made.client.cores[1].differs:
                    await asyncio.sleep(0.005)
        await sink.heard()
        assert isinstance(sink.error, EngineDead)
        await made.all_serve()
        assert made.client.require().model.max_model_len == 100


async def test_limits_are_those_of_the_smallest():
    async with house() as made:
        welcome = made.engines[1]._greeting(engine_pb2.Hello()).welcome
        welcome.max_num_seqs, welcome.epoch = 3, 50
        await made.engines[1].send(engine_pb2.EngineMessage(welcome=welcome))
        while made.client.cores[1].epoch != 50:
            await asyncio.sleep(0.005)
        facts = made.client.require()
        assert facts.max_num_seqs == 3 and facts.parallelism.data == 2


async def test_questions_go_to_all_of_them():
    async with house() as made:
        made.engines[1].load.running_requests = 5
        assert [(load.rank, load.running_requests) for load in await made.client.questions.loads()] == [
            (0, 0),
            (1, 5),
        ]
        await made.client.questions.reset_cache()
        assert [engine.num_resets for engine in made.engines] == [1, 1]
        sinks = [Sink(), Sink()]
        for rank, sink in enumerate(sinks):
            made.submit(sink, Routing(rank=rank), f"r{rank}")
            await next_of(made.engines[rank].requests)
        assert await made.client.questions.abort_by_ids(["r1", "r0", "unknown"]) == ["r1", "r0"]
        await asyncio.gather(*(sink.heard() for sink in sinks))
        await made.stop(0)
        assert [load.rank for load in await made.client.questions.loads()] == [1]


async def test_a_cache_that_could_not_be_emptied_is_told():
    async with house() as made:
        made.engines[1]._answer = lambda utility: asyncio.sleep(0)
        calls = made.client.cores[1].utility_calls
        ask = calls.ask

        async def ask_in_vain(call: engine_pb2.Utility, seconds: float) -> engine_pb2.UtilityResult:
            return await ask(call, 0.05)  # the other core is waited for longer

        calls.ask = ask_in_vain
        assert [load.rank for load in await made.client.questions.loads()] == [0]
        with pytest.raises(EngineNotReady):
            await made.client.questions.reset_cache()


async def test_a_silent_core_loses_its_requests_to_the_others(monkeypatch):
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.01)
    monkeypatch.setattr(engine_client, "SILENCE", inf)
    async with house() as made:
        made.submit(Sink(1), Routing(rank=0))
        await next_of(made.engines[0].requests)
        made.engines[0].silent = True
        silent, other = made.client.cores
        while silent.num_unanswered < other.num_unanswered + 20:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(engine_client, "SILENCE", silent.num_unanswered)  # the other one is not as silent
        while silent.epoch:
            await asyncio.sleep(0.005)
        monkeypatch.setattr(engine_client, "SILENCE", inf)
        assert (await next_of(made.engines[1].requests)).again
        made.engines[0].silent = False
        await made.all_serve()  # and its Hello has told it to forget what it had
        assert [len(core.in_flight) for core in made.client.cores] == [0, 1]


async def test_addresses_from_a_file_that_changes(monkeypatch, tmp_path: Path):
    """One that is new is used; one that is gone ends what it has, and gets nothing new."""
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.02)
    monkeypatch.setattr(engine_client, "SILENCE", inf)
    file = tmp_path / "engines"
    async with house(3, file=file) as made:
        client, (first, second, third) = made.client, made.engines
        sink = Sink()
        made.submit(sink, Routing(rank=0))
        request = await next_of(first.requests)
        file.write_text(f"{third.address}\n{second.address}\nnonsense\n")
        while [core.address for core in client.cores] != [third.address, second.address]:
            await asyncio.sleep(0.005)
        await made.all_serve()
        assert [core.rank for core in client.cores] == [0, 1] and len(client.journal) == 1
        for _ in range(6):
            made.submit(Sink())
        assert [len(core.in_flight) for core in client.cores] == [3, 3]
        assert first.requests.empty()
        await first.output(request.handle, Output([5], 3))
        await sink.heard()
        while client._list.leaving:
            await asyncio.sleep(0.005)
        file.unlink()
        await asyncio.sleep(0.05)
        assert len(client.cores) == 2 and made.state.serves  # what it said last holds


async def test_a_request_does_not_overtake_the_abort_of_one_with_its_id():
    async with house(count=1) as made:
        (core,) = made.client.cores
        send, room = core._socket.send, False
        core._socket.send = lambda frame: room and send(frame)
        core.abort(7)
        assert not core.add(engine_pb2.AddRequest(handle=8)), "the abort could not be sent"
        room = True
        assert core.add(engine_pb2.AddRequest(handle=8))
        assert (await next_of(made.engines[0].aborts)).handle == 7
