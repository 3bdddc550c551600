"""GenerateMultiplexed over real gRPC, with an engine that does what the test says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from frontend.auth.caller import ANONYMOUS
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.call.serving_state import SERVING, ServingState
from frontend.streams import multiplexer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u8, pack_u32, pack_u64
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import (
    Output,
    Service,
    encode,
    finishes_of,
    make_request,
    run_service,
    say,
    text_of,
)
from tests.patience import soon
from tests.stalled import StalledClient

ABORTED = generation_pb2.FINISH_REASON_ABORTED
MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
HELLO = say(encode("he"), encode("llo "), encode("é")[:1], encode("é")[1:], encode("!"))
Command = generation_pb2.GenerateMultiplexedRequest
Message = generation_pb2.GenerateMultiplexedResponse


def generate(request_id: str, **fields: Any) -> Command:
    fields.setdefault("output", {"token_ids": True})
    return Command(generate=make_request(request_id=request_id, **fields))


def abort(*request_ids: str, **fields: Any) -> Command:
    return Command(abort=generation_pb2.AbortRequest(request_ids=request_ids, **fields))


async def next_of(queue: "asyncio.Queue[Any]") -> Any:
    return await soon(queue.get())


class Client:
    """One stream."""

    def __init__(self, service: Service, metadata: Any = None) -> None:
        self.call = service.generation.GenerateMultiplexed(metadata=metadata)

    async def send(self, *commands: Command) -> None:
        for command in commands:
            await self.call.write(command)

    async def read(self) -> Message:
        message = await soon(self.call.read())
        assert message is not grpc.aio.EOF
        return message

    async def all(self) -> list[Message]:
        """The messages until the end, after the last command."""
        await self.call.done_writing()
        return await self.rest()

    async def rest(self) -> list[Message]:
        return [message async for message in _until_end(self.call)]

    async def error(self) -> generation_pb2.RequestError:
        """The next message, which is one."""
        (error,) = (await self.read()).errors
        return error


async def _until_end(call: Any) -> AsyncIterator[Message]:
    while (message := await soon(call.read())) is not grpc.aio.EOF:
        yield message


@asynccontextmanager
async def connected(checkpoint: Any, script: Any = None, **options: Any) -> AsyncIterator[Any]:
    async with run_service(checkpoint, script, **options) as service:
        yield service, Client(service)


def responses_of(messages: Iterable[Message], request_id: str) -> list[generation_pb2.GenerateResponse]:
    return [each for message in messages for each in message.responses if each.request_id == request_id]


def reason_of(error: generation_pb2.RequestError) -> str:
    info = error_details_pb2.ErrorInfo()
    assert error.details[0].Unpack(info)
    return info.reason


def fields_of(error: generation_pb2.RequestError) -> list[str]:
    bad = error_details_pb2.BadRequest()
    assert error.details[1].Unpack(bad)
    return [violation.field for violation in bad.field_violations]


async def handles_of(service: Service, number: int) -> dict[str, int]:
    """By id, of so many requests that come to the engine: which is first is for the tokenizer's threads."""
    requests = [await next_of(service.engine.requests) for _ in range(number)]
    return {request.request_id: request.handle for request in requests}


async def step(service: Service, *outputs: tuple[int, int, str, int]) -> None:
    """One step of the engine: (handle, position, text, finish) of each request."""
    texts = [encode(text) for _, _, text, _ in outputs]
    message = engine_pb2.StepOutputs(
        epoch=service.engine.epoch,
        handles=pack_u64([handle for handle, _, _, _ in outputs]),
        indexes=pack_u32([0] * len(outputs)),
        positions=pack_u32([position for _, position, _, _ in outputs]),
        counts=pack_u32([len(text) for text in texts]),
        token_ids=pack_u32([token for text in texts for token in text]),
        finish_reasons=pack_u8([finish for _, _, _, finish in outputs]),
        finish_token_ids=pack_u32([0] * len(outputs)),
    )
    await service.engine.send(engine_pb2.EngineMessage(step_outputs=message))


# What comes out.


async def test_each_request_gets_what_its_own_rpc_would_have_brought(checkpoint, model):
    wishes = {
        "a": {"sampling": {"seed": 5}},
        "b": {"sampling": {"seed": 5, "n": 3}, "output": {"timings": False, "continuous_usage": True}},
        "c": {"sampling": {"seed": 5}, "output": {"mode": "MODE_FINAL"}},
        "d": {"sampling": {"seed": 5}, "stopping": {"stop": ["o"]}, "output": {"mode": "MODE_CUMULATIVE"}},
    }

    def script(request: engine_pb2.AddRequest) -> Iterable[list[Output]]:
        return [
            [
                Output(encode(piece), MAX_TOKENS if piece == "!" else 0, index=index)
                for index in range(request.sampling.n)
            ]
            for piece in ("he", "llo", "!")
        ]

    async with connected(checkpoint, script, model=model) as (service, client):
        alone = {name: await service.generate(request_id=name, **wish) for name, wish in wishes.items()}
        await client.send(*(generate(name, **wish) for name, wish in wishes.items()))
        messages = await client.all()
        for name, wish in wishes.items():
            ours = responses_of(messages, name)
            for index in range(wish["sampling"].get("n", 1)):
                pick = _last_text if name == "d" else text_of
                assert pick(ours, index) == pick(alone[name], index)
            assert finishes_of(ours) == finishes_of(alone[name])
            assert ours[0].prompt == alone[name][0].prompt and ours[0].seed == 5 and ours[0].model == "fake"
            assert ours[-1].usage == alone[name][-1].usage
            assert [each.HasField("prompt") for each in ours] == [True] + [False] * (len(ours) - 1)
        assert await client.call.code() == grpc.StatusCode.OK


def _last_text(messages: list[generation_pb2.GenerateResponse], index: int) -> str:
    return messages[-1].sequences[index].text


async def test_what_comes_in_one_step_leaves_in_one_message(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        names = [f"r{place}" for place in range(20)]
        await client.send(*map(generate, names))
        handles = await handles_of(service, len(names))
        for position, text in enumerate("abc"):
            finish = MAX_TOKENS if text == "c" else 0
            await step(service, *((handles[name], position, text, finish) for name in names))
            message = await client.read()
            assert [each.request_id for each in message.responses] == names
            assert all(each.sequences[0].text == text for each in message.responses)
        assert await client.all() == []


async def test_the_bytes_of_a_message_have_a_bound(checkpoint, model, monkeypatch):
    monkeypatch.setattr(multiplexer, "MAX_BYTES", 1)
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("a"), generate("b"))
        handles = await handles_of(service, 2)
        await step(service, *((handles[name], 0, "x", MAX_TOKENS) for name in "ab"))
        messages = await client.all()
        assert [[each.request_id for each in message.responses] for message in messages] == [["a"], ["b"]]


async def test_half_a_code_point_is_no_message(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("a", output={}))
        handle = (await next_of(service.engine.requests)).handle
        await service.engine.output(handle, Output(encode("é")[:1]))
        await service.engine.output(handle, Output(encode("é")[1:], MAX_TOKENS))
        messages = await client.all()
        assert [each.sequences[0].text for each in responses_of(messages, "a")] == ["é"]


async def test_a_request_that_is_complete_when_it_comes(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        continuation = {"sequences": [{"index": 0, "token_ids": encode("ab")}]}
        await client.send(
            generate("a", sampling={"seed": 1}, stopping={"max_tokens": 2}, continuation=continuation)
        )
        (response,) = responses_of(await client.all(), "a")
        assert response.sequences[0].finish.reason == MAX_TOKENS and service.engine.requests.empty()


# What ends.


async def test_an_error_is_of_its_request_alone(checkpoint, model):
    """With the code, the message and the details that its own RPC would have had."""
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("good"))
        handle = (await next_of(service.engine.requests)).handle
        await client.send(generate("bad", sampling={"top_p": 7}, stopping={"stop": [""]}))
        error = await client.error()
        with pytest.raises(grpc.aio.AioRpcError) as alone:
            await service.generate(sampling={"top_p": 7}, stopping={"stop": [""]})
        assert (error.request_id, error.code) == ("bad", code_pb2.INVALID_ARGUMENT)
        assert error.message == alone.value.details()
        assert set(fields_of(error)) == {"sampling.top_p", "stopping.stop"}
        await client.send(generate("quarantined"))
        other = (await next_of(service.engine.requests)).handle
        await service.engine.output(other, Output(encode("x")))
        assert (await client.read()).responses[0].sequences[0].text == "x"
        await service.engine.fail(other, code_pb2.INTERNAL, "REQUEST_QUARANTINED", "no")
        error = await client.error()
        assert (error.request_id, error.message, reason_of(error)) == (
            "quarantined",
            "no",
            "REQUEST_QUARANTINED",
        )
        await service.engine.output(handle, Output(encode("on"), MAX_TOKENS))
        assert text_of(responses_of(await client.all(), "good")) == "on"
        assert service.frontend.counters.failures == {"REQUEST_QUARANTINED": 1}
        assert service.frontend.counters.refusals["INVALID_FIELD"] == 2


async def test_ids_are_required_and_each_is_in_flight_once(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate(""))
        error = await client.error()
        assert (error.request_id, error.code) == ("", code_pb2.INVALID_ARGUMENT)
        assert fields_of(error) == ["request_id"]
        await client.send(generate("a"))
        handle = (await next_of(service.engine.requests)).handle
        await client.send(generate("a"))
        error = await client.error()
        assert (error.request_id, error.code) == ("a", code_pb2.ALREADY_EXISTS)
        assert reason_of(error) == "REQUEST_ID_IN_USE"
        await service.engine.output(handle, Output(encode("x"), MAX_TOKENS))
        assert (await client.read()).responses[0].sequences[0].text == "x", "the first goes on"
        await client.send(generate("a"))
        await next_of(service.engine.requests)
        error = await _error_of(service.generate(request_id="a", prompt={"text": "other"}))
        assert error.code() == grpc.StatusCode.ALREADY_EXISTS, "an id is one in the whole frontend"


async def _error_of(answer: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    return caught.value


async def test_a_command_that_says_nothing(checkpoint, model):
    async with connected(checkpoint, model=model) as (_, client):
        await client.send(Command())
        assert fields_of(await client.error()) == ["command"]
        assert await client.all() == []


async def test_a_stream_has_so_many_requests_and_no_more(checkpoint, model):
    async with connected(checkpoint, model=model, max_multiplexed_requests=2) as (service, client):
        await client.send(generate("a"), generate("b"))
        handles = await handles_of(service, 2)
        await client.send(generate("c"))
        error = await client.error()
        assert (error.request_id, error.code) == ("c", code_pb2.RESOURCE_EXHAUSTED)
        assert reason_of(error) == "STREAM_FULL"
        await service.engine.output(handles["a"], Output(encode("x"), MAX_TOKENS))
        await client.read()
        await client.send(generate("c"))
        assert (await next_of(service.engine.requests)).request_id == "c"


async def test_requests_count_as_calls_do(checkpoint, model):
    async with connected(checkpoint, model=model, max_concurrent_requests=1) as (service, client):
        await client.send(generate("a"))
        handle = (await next_of(service.engine.requests)).handle
        await client.send(generate("b"))
        error = await client.error()
        assert (error.request_id, reason_of(error)) == ("b", "FRONTEND_FULL")
        assert (await _error_of(service.generate())).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await service.engine.output(handle, Output(encode("x"), MAX_TOKENS))
        assert len(await client.all()) == 1 and service.frontend.limits.num_calls == 0


async def test_abort_ends_requests_of_this_stream(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        other = Client(service)
        await other.send(generate("theirs"))
        theirs = await next_of(service.engine.requests)
        await client.send(generate("a"), generate("b"))
        handles = await handles_of(service, 2)
        await service.engine.output(handles["a"], Output(encode("x")))
        await client.read()
        await client.send(abort("a", "theirs", "unknown"))
        (response,) = (await client.read()).responses
        assert (response.request_id, response.sequences[0].finish.reason) == ("a", ABORTED)
        assert (await next_of(service.engine.aborts)).handle == handles["a"]
        await service.engine.output(theirs.handle, Output(encode("y"), MAX_TOKENS))
        assert text_of(responses_of(await other.all(), "theirs")) == "y"
        await client.send(abort("b", tenant="x"))
        error = await client.error()
        assert (error.request_id, fields_of(error)) == ("", ["tenant"])
        assert (await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["b"]))) is not None
        assert [each.sequences[0].finish.reason for each in responses_of(await client.all(), "b")] == [
            ABORTED
        ]


async def test_abort_of_a_request_that_is_being_read(checkpoint, model, monkeypatch):
    async with connected(checkpoint, model=model) as (service, client):
        reader = service.frontend.parts.prompts
        read, entered, go = reader.read_for_generation, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: Any, **options: Any) -> Any:
            entered.set()
            await go.wait()
            return await read(*arguments, **options)

        monkeypatch.setattr(reader, "read_for_generation", slow)
        await client.send(generate("a"))
        await soon(entered.wait())
        await client.send(abort("a"), Command())
        assert fields_of(await client.error()) == ["command"], "so the abort has been read, too"
        go.set()
        (response,) = responses_of(await client.all(), "a")
        assert response.sequences[0].finish.reason == ABORTED and service.engine.requests.empty()


async def test_a_client_that_leaves_ends_all_its_requests(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        frontend, tasks = service.frontend, len(asyncio.all_tasks())
        await client.send(generate("a"), generate("b"))
        handles = set((await handles_of(service, 2)).values())
        client.call.cancel()
        assert {(await next_of(service.engine.aborts)).handle for _ in "ab"} == handles
        while frontend.limits.num_calls or len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0.01)
        assert not frontend.parts.generator.registry and not len(frontend.engine.journal)
        assert frontend.counters.outcomes == {"cancelled": 2}


async def test_the_deadline_of_the_call_is_that_of_its_requests(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.GenerateMultiplexed(timeout=100)
        await call.write(generate("a"))
        assert 50 < (await next_of(service.engine.requests)).deadline.seconds <= 100
        call.cancel()


async def test_garbage_ends_the_stream(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        method = "/pagewire.v1.GenerationService/GenerateMultiplexed"
        call = service.channel.stream_stream(method)()
        await call.write(generate("a").SerializeToString())
        handle = (await next_of(service.engine.requests)).handle
        await call.write(b"\x1a\xff\xff\xff\xff\x0f")
        assert await soon(call.code()) == grpc.StatusCode.INVALID_ARGUMENT
        assert (await next_of(service.engine.aborts)).handle == handle


async def test_a_bug_is_of_one_request_and_not_shown(checkpoint, model, monkeypatch, caplog):
    async with connected(checkpoint, HELLO, model=model) as (_, client):

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("a secret of the house")

        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger=multiplexer.__name__):
            patch.setattr("frontend.streams.generator.resolve", broken)
            await client.send(generate("a"))
            error = await client.error()
        assert (error.code, reason_of(error)) == (code_pb2.INTERNAL, "INTERNAL")
        assert "secret" not in error.message and "secret" in caplog.text
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger=multiplexer.__name__):
            patch.setattr("frontend.streams.stream.Stream.put", broken)
            await client.send(generate("b"))
            error = await client.error()
        assert (error.request_id, error.code) == ("b", code_pb2.INTERNAL)
        await client.send(generate("c"))
        assert text_of(responses_of(await client.all(), "c")) == "hello é!"


# A server that goes, and clients that do not read.


async def test_a_drain_ends_the_stream_after_its_requests(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("a"))
        handle = (await next_of(service.engine.requests)).handle
        idle = Client(service)
        await idle.send(Command())
        await idle.error()
        service.frontend.state.refuse()
        assert await soon(idle.call.code()) == grpc.StatusCode.UNAVAILABLE
        await client.send(generate("b"))
        error = await client.error()
        assert (error.code, reason_of(error)) == (code_pb2.UNAVAILABLE, "DRAINING")
        await service.engine.output(handle, Output(encode("x"), MAX_TOKENS))
        assert text_of(responses_of([await client.read()], "a")) == "x"
        assert await soon(client.call.code()) == grpc.StatusCode.UNAVAILABLE
        assert (await _error_of(client.call.read())).details().startswith("this server is going away")


async def test_an_idle_stream_notices_the_second_drain(checkpoint, model):
    """It once watched for the first one only: at a shutdown it then cost the whole grace period."""
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("a"))
        handle = (await next_of(service.engine.requests)).handle
        service.frontend.state.refuse()
        await asyncio.sleep(0.05)
        service.frontend.state.resume()
        await service.engine.output(handle, Output(encode("x"), MAX_TOKENS))
        assert text_of(responses_of([await client.read()], "a")) == "x"
        service.frontend.state.refuse()
        assert await soon(client.call.code()) == grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_ends_has_each_request_continued(checkpoint, model):
    async with connected(checkpoint, model=model) as (service, client):
        await client.send(generate("a"))
        await next_of(service.engine.requests)
        stopping = asyncio.ensure_future(service.frontend.stop(0))
        error = await client.error()
        assert (error.request_id, reason_of(error)) == ("a", "DRAINING")
        assert await soon(client.call.code()) == grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_a_reader_that_pauses_gets_everything_merged(checkpoint, model):
    """What is written meanwhile is a message, and one more for all that came behind it."""
    texts = [f"{place % 10}" for place in range(60)]
    async with run_service(checkpoint, say(*map(encode, texts)), model=model) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            stream = client.call(generate("a"), "GenerateMultiplexed")
            await next_of(service.engine.requests)
            while len(service.frontend.engine.journal):
                await asyncio.sleep(0.01)
            data, trailers = await asyncio.to_thread(client.read_on, stream)
            messages = list(_messages_in(data))
            assert text_of(responses_of(messages, "a")) == "".join(texts) and trailers["grpc-status"] == "0"
            assert len(messages) < 10


def _messages_in(data: bytes) -> Iterable[Message]:
    """gRPC's frames: a flag, four bytes of length, the message."""
    while data:
        end = 5 + int.from_bytes(data[1:5], "big")
        yield Message.FromString(data[5:end])
        data = data[end:]


async def test_a_reader_that_stalls_is_ended_with_all_its_requests(checkpoint, model):
    async with run_service(checkpoint, model=model, write_timeout=0.2) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            client.call(generate("a"), "GenerateMultiplexed")
            handle = (await next_of(service.engine.requests)).handle
            await service.engine.output(handle, Output(encode("x")))
            assert (await next_of(service.engine.aborts)).handle == handle


async def test_commands_are_not_read_while_rejections_are_unread(checkpoint, model):
    """Otherwise they would grow without end."""
    async with run_service(checkpoint, model=model) as service:
        frontend = service.frontend
        assert frontend.state.engine == SERVING
        many = multiplexer.Multiplexer(frontend.parts.generator, frontend.state, frontend.limits, 1)
        for _ in range(multiplexer.MAX_ERRORS):
            await soon(many.wait_for_room())
            many.handle(Command(), lambda: Call(ANONYMOUS))
        reading = asyncio.ensure_future(many.wait_for_room())
        await asyncio.sleep(0)
        assert not reading.done()
        message = await many.take()
        assert len(message.errors) == multiplexer.MAX_ERRORS
        await soon(reading)
        await many.aclose()


class HeldBackStream:
    """Has output, but no message is due, as with MODE_FINAL before the end."""

    over, has_more = False, True

    def __init__(self) -> None:
        self.call: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def when_due(self, call: Any) -> None:
        self.call.set_result(call)

    def put(self, response: generation_pb2.GenerateResponse) -> bool:
        return self.over


async def test_output_that_is_not_due_yet_does_not_hold_up_the_stream():
    """Found with requests in MODE_FINAL whose output came before the first look: none was answered."""
    held = HeldBackStream()

    class Generator:
        @asynccontextmanager
        async def open(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            yield held

    limits = ConcurrencyLimits(0, 0)
    requests = multiplexer.Multiplexer(Generator(), ServingState(), limits, 9)
    requests.handle(generate("a"), lambda: Call(ANONYMOUS))
    taking = asyncio.create_task(requests.take())
    call = await soon(held.call)
    held.over, held.has_more = True, False
    call()
    message = await soon(taking)
    assert [each.request_id for each in message.responses] == ["a"]
    await requests.aclose()
