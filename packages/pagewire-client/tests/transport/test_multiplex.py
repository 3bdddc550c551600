"""Both clients' multiplexed streams against a fake server: same results, same errors, and leaving cancels."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pagewire import AsyncClient, Client
from pagewire.v1 import generation_pb2
from pagewire_client.errors import DeadlineExceeded, InvalidArgument
from pagewire_client.transport.exchange import MultiplexedRequest
from tests.pagewire import fakes
from tests.patience import PATIENCE_S, soon

EOS = generation_pb2.FINISH_REASON_EOS
Message = generation_pb2.GenerateMultiplexedResponse


@pytest.fixture
def service() -> fakes.FakeService:
    return fakes.FakeService()


@pytest.fixture(params=["sync", "async"])
def run(request: Any, service: fakes.FakeService) -> Iterator[Any]:
    """Sends prompts, reads to the end: the requests, and what each delta was of."""

    def run_sync(address: str, prompts: list[str], **options: Any) -> Any:
        with Client(address) as client, client.multiplex(**options) as many:
            requests = [many.send(prompt, max_tokens=9) for prompt in prompts]
            news = [(each, delta.text if delta else None) for each, delta in many]
            assert list(many) == [] and list(many.results()) == []
            return requests, news

    async def run_async(address: str, prompts: list[str], **options: Any) -> Any:
        async with AsyncClient(address) as client, client.multiplex(**options) as many:
            requests = [many.send(prompt, max_tokens=9) for prompt in prompts]
            news = [(each, delta.text if delta else None) async for each, delta in many]
            assert [each async for each in many] == [] and [each async for each in many.results()] == []
            return requests, news

    with fakes.running(service) as address:
        if request.param == "sync":
            yield lambda prompts, **options: run_sync(address, prompts, **options)
        else:
            yield lambda prompts, **options: asyncio.run(run_async(address, prompts, **options))


def words_of(request: generation_pb2.GenerateRequest) -> list[str]:
    return request.prompt.text.split(" ")


def echo(commands: Iterator[Any], context: Any, stop_after: int = 99) -> Iterator[Message]:
    """The words of two prompts, one of each per message; goes on where a continuation says."""
    requests = [next(commands).generate, next(commands).generate]
    for place in range(max(len(words_of(request)) for request in requests)):
        message = Message()
        for request in requests:
            _put_word(message, request, place)
        if message.responses:
            if not stop_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            stop_after -= 1
            yield message


def _put_word(message: Message, request: generation_pb2.GenerateRequest, place: int) -> None:
    words = words_of(request)
    held = sum(len(each.token_ids) for each in request.continuation.sequences)
    if held <= place < len(words):
        response = message.responses.add(request_id=request.request_id)
        if place == held:
            response.seed, response.prompt.tokens = 7, 1
        output = response.sequences.add(text=words[place], position=place, token_ids=[place])
        if place == len(words) - 1:
            output.finish.reason = EOS


def texts(requests: list[MultiplexedRequest]) -> list[str]:
    return [request.generation.text for request in requests]


def test_results(run: Any, service: fakes.FakeService):
    service.respond_many = echo
    requests, news = run(["a b c", "x y"])
    assert texts(requests) == ["abc", "xy"] and all(each.done and not each.error for each in requests)
    first, second = requests
    assert news == [(first, "a"), (second, "x"), (first, "b"), (second, "y"), (first, "c")]
    assert service.ended.wait(PATIENCE_S)


def test_a_stream_that_breaks_is_continued(run: Any, service: fakes.FakeService):
    attempts = []

    def breaks(commands: Iterator[Any], context: Any) -> Iterator[Message]:
        attempts.append(1)
        yield from echo(commands, context, stop_after=2 if len(attempts) < 3 else 99)

    service.respond_many = breaks
    requests, _ = run(["a b c d e f g", "m n o p q r s t u"])
    assert texts(requests) == ["abcdefg", "mnopqrstu"] and len(attempts) == 3


def test_an_error_of_one(run: Any, service: fakes.FakeService):
    def refuse(commands: Iterator[Any], context: Any) -> Iterator[Message]:
        message = Message()
        bad, good = next(commands).generate, next(commands).generate
        message.errors.add(request_id=bad.request_id, code=3, message="bad")
        _put_word(message, good, 0)
        yield message

    service.respond_many = refuse
    (bad, good), news = run(["a", "x"])
    assert isinstance(bad.error, InvalidArgument) and str(bad.error) == "bad (INVALID_ARGUMENT)"
    assert good.generation.text == "x" and sorted(news, key=str) == sorted(
        [(bad, None), (good, "x")], key=str
    )


def test_a_timeout_is_of_all(run: Any, service: fakes.FakeService):
    def silent(commands: Iterator[Any], context: Any) -> Iterator[Message]:
        service.ended.wait(PATIENCE_S)
        yield from ()

    service.respond_many = silent
    requests, news = run(["a", "x"], timeout=0.1)
    assert [type(each.error) for each in requests] == [DeadlineExceeded] * 2
    assert [delta for _, delta in news] == [None, None]


def test_leaving_cancels(service: fakes.FakeService):
    service.respond_many = fakes.endless_many
    with fakes.running(service) as address, Client(address) as client:
        with client.multiplex() as many:
            many.send("hi", n=3)
            next(many)
        assert service.ended.wait(PATIENCE_S)


async def test_async_leaving_cancels(service: fakes.FakeService):
    service.respond_many = fakes.endless_many
    with fakes.running(service) as address:
        async with AsyncClient(address) as client, client.multiplex() as many:
            many.send("hi", n=3)
            await anext(many)
        assert await asyncio.to_thread(service.ended.wait, PATIENCE_S)


def test_abort_wakes_the_thread_that_waits(service: fakes.FakeService):
    """Also where nothing is sent: the iteration ends."""
    with fakes.running(service) as address, Client(address) as client:
        many = client.multiplex(max_in_flight=0)
        request = many.send("hi")
        many.abort(request)
        assert list(many) == [(request, None)]
        many.close()


async def test_async_abort_wakes_the_task_that_waits(service: fakes.FakeService):
    with fakes.running(service) as address:
        async with AsyncClient(address) as client, client.multiplex(max_in_flight=0) as many:
            request = many.send("hi")
            waiting = asyncio.ensure_future(anext(many))
            await asyncio.sleep(0)
            many.abort(request)
            assert await soon(waiting) == (request, None)


def test_results_come_as_they_end(service: fakes.FakeService):
    service.respond_many = echo
    with fakes.running(service) as address, Client(address) as client, client.multiplex() as many:
        long, short = many.send("a b c"), many.send("x")
        assert list(many.results()) == [short, long]


async def test_async_results_come_as_they_end(service: fakes.FakeService):
    service.respond_many = echo
    with fakes.running(service) as address:
        async with AsyncClient(address) as client, client.multiplex() as many:
            long, short = many.send("a b c"), many.send("x")
            assert [each async for each in many.results()] == [short, long]
