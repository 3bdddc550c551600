"""The engine hop without gRPC: a real client, a fake core, a real socket between them."""

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Sequence
from math import inf

import pytest
import zmq

from frontend.call.serving_state import FAILED, SERVING, STARTING, ServingState
from frontend.engine import client as engine_client
from frontend.engine.client import EngineClient
from frontend.engine.logprobs import Scores
from frontend.errors import EngineDead, EngineNotReady, EngineRefused, InternalError, ProtocolError
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u8, pack_u32, pack_u64
from pagewire.ipc.transport import HIGH_WATER_MARK
from tests.frontend.fakes import FakeEngine, Output, engine_address
from tests.patience import soon


class FakeSink:
    """Remembers what it is told; `ends` is how many pushes it takes."""

    def __init__(self, ends: int = 1) -> None:
        self.outputs: list[tuple[int, int, list[int], int, int]] = []
        self.starts: list[tuple[int, int]] = []
        self.drafts: list[tuple[int, int]] = []
        self.scores: list[list[float] | None] = []
        self.prompt_scores: list[tuple[int, list[float]]] = []
        self.error: Exception | None = None
        self.event = asyncio.Event()
        self.left = ends
        self.refuses = False
        self.wants_abort = False

    @property
    def ended(self) -> bool:
        return self.left == 0

    def started(self, queue_us: int, cached_tokens: int, waits_us: Sequence[int] = ()) -> None:
        self.starts.append((queue_us, cached_tokens))

    def drafted(self, method: int, num_drafted: int, num_accepted: int) -> None:
        self.drafts.append((num_drafted, num_accepted))

    def paused(self, pause_us: int, now: int) -> None:
        """Nothing here is preempted."""

    def push(
        self,
        index: int,
        position: int,
        token_ids: "array[int]",
        reason: int,
        matched: int,
        now: int,
        scores: Scores | None = None,
    ) -> bool:
        if self.refuses:
            raise ProtocolError("no")
        assert now > 0
        self.scores.append(None if scores is None else list(scores.logprobs))
        self.outputs.append((index, position, list(token_ids), reason, matched))
        self.left -= bool(reason)
        self.event.set()
        return self.wants_abort

    def push_prompt_logprobs(self, start: int, scores: Scores) -> None:
        if self.refuses:
            raise ProtocolError("no")
        self.prompt_scores.append((start, list(scores.logprobs)))

    def fail(self, error: Exception) -> None:
        self.error = error
        self.event.set()

    async def heard(self) -> None:
        await soon(self.event.wait())
        self.event.clear()


@contextlib.asynccontextmanager
async def connected(*, start: bool = True, **options):
    """(client, engine, state), welcomed unless start is False."""
    with engine_address() as address:
        engine = FakeEngine(address, **options)
        state = ServingState()
        client = EngineClient(address, state)
        if start:
            await engine.start()
        client.start()
        try:
            if start:
                await reaches(state, SERVING)
            yield client, engine, state
        finally:
            await client.close()
            await engine.close()


async def reaches(state: ServingState, wanted: int) -> None:
    async def wait() -> None:
        while state.state != wanted:
            await state.changed()

    await soon(wait())


async def next_of(queue: asyncio.Queue):
    return await soon(queue.get())


async def submit(client: EngineClient, engine: FakeEngine, sink: FakeSink) -> int:
    handle = client.submit(engine_pb2.AddRequest(request_id="x", sampling={"n": 1}), sink)
    assert (await next_of(engine.requests)).handle == handle
    return handle


async def test_welcome():
    async with connected() as (client, engine, state):
        hello = await next_of(engine.hellos)
        assert hello.frontend_id == client.identity.hex() and hello.known_epoch == 0 and hello.version
        assert client.require().model.vocab_size == 512 and client.facts is not None
        assert state.serves


async def test_either_may_start_first():
    async with connected(start=False) as (client, engine, state):
        assert state.state == STARTING and client.facts is None
        with pytest.raises(EngineNotReady):
            client.require()
        await engine.start()
        await reaches(state, SERVING)


async def test_a_core_that_loads_does_not_answer():
    """Hello goes on until it does, and says that no epoch is known."""
    async with connected(start=False) as (_, engine, state):
        engine.silent = True
        await engine.start()
        assert (await next_of(engine.hellos)).known_epoch == 0
        assert state.state == STARTING
        engine.silent = False
        await reaches(state, SERVING)


async def test_the_heartbeat_knows_the_epoch(monkeypatch):
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.01)
    async with connected(epoch=7) as (_, engine, _state):
        while (await next_of(engine.hellos)).known_epoch != 7:
            pass


async def test_a_core_that_falls_silent_counts_as_dead_until_it_speaks(monkeypatch):
    """Its requests are resent, to this core or to another one."""
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.01)
    monkeypatch.setattr(engine_client, "SILENCE", inf)  # a busy machine may be silent for as long
    async with connected() as (client, engine, state):
        sink = FakeSink()
        await submit(client, engine, sink)
        engine.silent = True
        monkeypatch.setattr(engine_client, "SILENCE", 5)
        await reaches(state, FAILED)
        with pytest.raises(EngineNotReady):
            client.require()
        await sink.heard()
        assert isinstance(sink.error, EngineDead)  # this client does not resume
        monkeypatch.setattr(engine_client, "SILENCE", inf)
        engine.silent = False
        await reaches(state, SERVING)


async def test_a_core_that_gets_no_hello_is_not_silent(monkeypatch):
    """A frontend that was stopped for long itself finds that much time has passed, and no answer."""
    monkeypatch.setattr(engine_client, "HEARTBEAT", 0.2)
    monkeypatch.setattr(engine_client, "SILENCE", 4)
    async with connected() as (client, engine, state):
        time.sleep(1.5)  # nothing of this loop runs
        await asyncio.sleep(0.3)
        assert state.state == SERVING and client.facts


async def test_outputs_reach_their_sinks():
    async with connected() as (client, engine, _):
        sinks = [FakeSink(), FakeSink(ends=2)]
        handles = [await submit(client, engine, sink) for sink in sinks]
        assert handles == [1, 2] and len(client.journal) == 2
        await engine.output(handles[0], Output([5, 6]), queue_us=12)
        await engine.output(handles[1], Output([7], index=0), Output([8, 9], 1, 9, index=1))
        await sinks[1].heard()
        assert sinks[0].starts == [(12, 0)] and sinks[0].outputs == [(0, 0, [5, 6], 0, 0)]
        assert sinks[1].outputs == [(0, 0, [7], 0, 0), (1, 0, [8, 9], 1, 9)]
        await engine.output(handles[0], Output([4], 3))
        await engine.output(handles[1], Output([], 3))
        await sinks[1].heard()
        assert sinks[0].outputs[-1] == (0, 2, [4], 3, 0) and sinks[1].outputs[-1] == (0, 1, [], 3, 0)
        assert len(client.journal) == 0


async def test_release_aborts_what_has_not_ended():
    async with connected() as (client, engine, _):
        sinks = [FakeSink(), FakeSink()]
        handles = [await submit(client, engine, sink) for sink in sinks]
        await engine.output(handles[0], Output([5], 3))
        await sinks[0].heard()
        client.release(handles[0])  # ended: nothing to abort
        client.release(handles[1])
        client.release(handles[1])  # idempotent
        abort = await next_of(engine.aborts)
        assert (abort.handle, list(abort.indexes)) == (handles[1], [])
        await engine.output(handles[1], Output([5]))  # it did not know yet: ignored
        assert (await client.questions.loads())[0].kv_total_tokens == 1024
        assert engine.aborts.empty() and sinks[1].outputs == []


async def test_a_sequence_that_ended_here_is_aborted_there():
    async with connected() as (client, engine, _):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        sink.wants_abort = True
        await engine.output(handle, Output([5], index=3))
        abort = await next_of(engine.aborts)
        assert (abort.handle, list(abort.indexes)) == (handle, [3])


async def test_outputs_that_a_sink_refuses():
    async with connected() as (client, engine, _):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        sink.refuses = True
        await engine.output(handle, Output([5]))
        assert (await next_of(engine.aborts)).handle == handle
        assert isinstance(sink.error, InternalError) and client.protocol_errors == 1


class Panic(BaseException):
    """As PyO3's, which is no Exception."""


@pytest.mark.parametrize("error", [KeyError, Panic])
async def test_an_output_that_cannot_be_taken_costs_its_request_alone(error):
    class Broken(FakeSink):
        def push(self, *_: object) -> bool:
            raise error

    async with connected() as (client, engine, _):
        broken, other = Broken(), FakeSink()
        handles = [await submit(client, engine, sink) for sink in (broken, other)]
        zeros = pack_u32([0, 0])
        step = engine_pb2.StepOutputs(
            epoch=engine.epoch,
            handles=pack_u64(handles),
            indexes=zeros,
            positions=zeros,
            counts=pack_u32([1, 1]),
            token_ids=pack_u32([5, 6]),
            finish_reasons=bytes(2),
            finish_token_ids=zeros,
        )
        await engine.send(engine_pb2.EngineMessage(step_outputs=step))
        assert (await next_of(engine.aborts)).handle == handles[0]
        await other.heard()
        assert isinstance(broken.error, InternalError) and other.outputs[0][2] == [6]
        assert len(client.journal) == 1 and client.protocol_errors == 0


async def test_a_request_that_the_core_refuses():
    async with connected() as (client, engine, _):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        await engine.fail(handle, 8, "QUEUE_FULL", "full")
        await sink.heard()
        assert isinstance(sink.error, EngineRefused) and sink.error.reason == "QUEUE_FULL"
        assert len(client.journal) == 0


async def test_questions():
    async with connected() as (client, engine, _):
        sink = FakeSink()
        await submit(client, engine, sink)
        assert await client.questions.abort_by_ids(["y", "x"]) == ["x"]
        await sink.heard()
        assert sink.outputs[-1][3] == 6
        engine.load.running_requests = 5
        assert (await client.questions.loads())[0].running_requests == 5


async def test_a_question_that_is_not_answered(monkeypatch):
    monkeypatch.setattr("frontend.engine.core.ANSWER", 0.01)
    async with connected() as (client, engine, _):
        monkeypatch.setattr(engine, "_answer", lambda utility: asyncio.sleep(0))
        with pytest.raises(EngineNotReady):
            await client.questions.loads()


async def test_the_core_dies():
    """Streams and utility_calls fail; another core is welcome."""
    async with connected() as (client, engine, state):
        sink = FakeSink()
        await submit(client, engine, sink)
        engine._answer = lambda utility: asyncio.sleep(0)
        question = asyncio.ensure_future(client.questions.loads())
        await asyncio.sleep(0)
        await engine.stop()
        await sink.heard()
        assert isinstance(sink.error, EngineDead) and state.state == FAILED
        with pytest.raises(EngineNotReady):
            await question
        with pytest.raises(EngineNotReady):
            client.submit(engine_pb2.AddRequest(), FakeSink())
        assert client.facts is not None  # what the model is has not changed
        engine.epoch = 2
        await engine.start()
        await reaches(state, SERVING)
        assert client.require().epoch == 2


async def test_another_core_takes_the_place_of_the_old_one():
    async with connected() as (client, engine, state):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        engine.epoch = 2
        await engine.send(engine._greeting(engine_pb2.Hello()))
        await sink.heard()
        assert isinstance(sink.error, EngineDead) and state.serves
        client.release(handle)
        assert (await client.questions.loads())[0].kv_total_tokens and engine.aborts.empty()


async def test_messages_of_another_epoch_are_ignored():
    async with connected(epoch=3) as (client, engine, _):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        engine.epoch = 2
        await engine.output(handle, Output([9]))
        await engine.fail(handle, 13, "X", "late")
        engine.epoch = 3
        await engine.output(handle, Output([5], position=0))
        await sink.heard()
        assert [output[2] for output in sink.outputs] == [[5]] and sink.error is None


COLUMNS = {
    "handles": pack_u64([1]),
    "indexes": pack_u32([0]),
    "positions": pack_u32([0]),
    "counts": pack_u32([1]),
    "token_ids": pack_u32([5]),
    "finish_reasons": pack_u8([0]),
    "finish_token_ids": pack_u32([0]),
}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x09nonsense",
        b"\x01\xff\xff\xff",
        *(
            b"\x01"
            + engine_pb2.EngineMessage(
                step_outputs=engine_pb2.StepOutputs(epoch=1, **{**COLUMNS, **change})
            ).SerializeToString()
            for change in (
                {"handles": b"123"},
                {"indexes": b""},
                {"counts": pack_u32([2])},
                {"counts": pack_u32([1, 0])},
                {"finish_reasons": b""},
                {"started_handles": pack_u64([1])},
                {"draft_counts": pack_u32([1, 2])},
            )
        ),
    ],
)
async def test_frames_that_make_no_sense_are_counted_and_dropped(frame, caplog):
    """S3: never fatal, and the next message is read as if nothing had happened."""
    async with connected() as (client, engine, _):
        sink = FakeSink()
        handle = await submit(client, engine, sink)
        with caplog.at_level(logging.CRITICAL):
            await engine.send(engine_pb2.EngineMessage(), raw=frame)
            await engine.output(handle, Output([5], 3))
            await sink.heard()
        assert client.protocol_errors == 1
        assert sink.outputs == [(0, 0, [5], 3, 0)] and sink.error is None


async def test_a_core_that_does_not_read_is_not_ready(monkeypatch):
    """Sending never waits: beyond the high-water mark it is a refusal."""
    monkeypatch.setattr("pagewire.ipc.transport.HIGH_WATER_MARK", 4)
    assert HIGH_WATER_MARK > 4
    with engine_address() as address:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.RCVHWM, 1)
        router.bind(address)
        state = ServingState()
        client = EngineClient(address, state)
        client.start()
        client.cores[0]._accept(engine_pb2.Welcome(epoch=1))
        client.on_heartbeat(client.cores[0])
        with pytest.raises(EngineNotReady):
            while True:
                client.submit(engine_pb2.AddRequest(request_id="x" * 100_000), FakeSink())
                await asyncio.sleep(0)
        await client.close()
        context.destroy(linger=0)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5555", "ipc://relative", "ipc:///" + "x" * 200])
async def test_addresses_that_make_no_sense(address):
    client = EngineClient(address, ServingState())
    with pytest.raises(StartupError):
        client.start()
    await client.close()


async def test_drafts_are_told_to_their_streams():
    """With three tokens, of which two were drafted, and a third draft that was refused."""
    async with connected() as (client, engine, _):
        first, second = FakeSink(), FakeSink()
        handles = [await submit(client, engine, sink) for sink in (first, second)]
        outputs = engine_pb2.StepOutputs(
            epoch=engine.epoch,
            handles=pack_u64(handles),
            indexes=pack_u32([0, 0]),
            positions=pack_u32([0, 0]),
            counts=pack_u32([3, 1]),
            token_ids=pack_u32([5, 6, 7, 8]),
            finish_reasons=pack_u8([3, 3]),
            finish_token_ids=pack_u32([0, 0]),
            draft_counts=pack_u32([3, 0]),
        )
        await engine.send(engine_pb2.EngineMessage(step_outputs=outputs))
        await second.heard()
        assert first.drafts == [(3, 2)] and not second.drafts
        assert first.outputs == [(0, 0, [5, 6, 7], 3, 0)]
