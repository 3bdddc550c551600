"""Streams of tei.v1: order, errors, cancellation, and servers that stop."""

import asyncio
from typing import Any

import grpc
import pytest

from pagewire.ipc.columns import unpack_u32
from tei_calls import EMBEDS, LAST, STOP, collect, each_of, embed, fields_of, refusal, text
from tests.frontend.fakes import BEGIN, Output, encode, fake_vector, in_time, pool, run_service, until


async def test_a_stream_answers_in_the_order_of_its_messages(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        texts = ["a", "bb", "ccc"]
        answers = asyncio.create_task(collect(embed(service).EmbedStream(each_of(*map(text, texts)))))
        handles = {}
        for _ in texts:
            sent = await asyncio.wait_for(service.engine.requests.get(), 30)
            handles[len(sent.prompt_token_ids)] = sent.handle
        assert service.frontend.parts.limits.num_calls == 1, (
            "a stream takes one slot, as a call of many inputs"
        )
        for size in sorted(handles, reverse=True):
            await service.engine.output(handles[size], Output((), STOP))
        found, error = await asyncio.wait_for(answers, 30)
        assert error is None
        vectors = [list(each.embeddings) for each in found]
        assert vectors == [fake_vector([BEGIN, *encode(each)], LAST) for each in texts]
        await until(lambda: service.frontend.parts.limits.num_calls == 0)


async def test_the_first_error_ends_a_stream_behind_the_answers_before_it(checkpoint):
    def script(request):
        return [] if len(request.prompt_token_ids) > 16 else pool(request)

    async with run_service(checkpoint, script, **EMBEDS) as service:
        messages = (text("a"), text("b"), text(""), text("never answered"))
        found, error = await collect(embed(service).EmbedStream(each_of(*messages)))
        assert error is not None and len(found) == 2 and fields_of(error) == ["inputs"]
        await until(lambda: service.frontend.parts.generator.registry.num_requests == 0)


async def test_a_stream_reads_no_further_ahead_than_it_may(checkpoint):
    async with run_service(checkpoint, max_multiplexed_requests=2, **EMBEDS) as service:
        texts = ["a", "bb", "ccc", "dddd"]
        answers = asyncio.create_task(collect(embed(service).EmbedStream(each_of(*map(text, texts)))))
        handles: dict[Any, int] = {}  # by prompt: what runs side by side has no order
        for place, each in enumerate(texts):
            for _ in range(1 if place else 2):
                if place < 3:
                    sent = await asyncio.wait_for(service.engine.requests.get(), 30)
                    handles[tuple(unpack_u32(sent.prompt_token_ids))] = sent.handle
            assert len(handles) <= 2 and service.frontend.parts.generator.registry.num_requests <= 2
            await service.engine.output(handles.pop((BEGIN, *encode(each))), Output((), STOP))
        found, error = await asyncio.wait_for(answers, 30)
        assert error is None and len(found) == 4 and service.engine.requests.empty()


async def test_a_cancelled_stream_aborts_its_requests(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call = embed(service).EmbedStream(each_of(text("a"), text("b")))
        reading = asyncio.create_task(call.read())
        sent = {(await asyncio.wait_for(service.engine.requests.get(), 30)).handle for _ in "ab"}
        call.cancel()
        ended = {(await asyncio.wait_for(service.engine.aborts.get(), 30)).handle for _ in "ab"}
        assert ended == sent
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("leave", ["close", "refuse"])
async def test_an_idle_stream_does_not_keep_the_server_from_stopping(checkpoint, leave):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        call = embed(service).EmbedStream()
        await call.write(text("a"))
        assert (await call.read()).embeddings
        getattr(service.frontend.parts.state, leave)()
        error = await refusal(asyncio.wait_for(call.read(), 30))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_stops_answers_what_it_has(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call = embed(service).EmbedStream()
        await call.write(text("a"))
        sent = await asyncio.wait_for(service.engine.requests.get(), 30)
        stopping = asyncio.ensure_future(service.frontend.stop(30))
        await until(lambda: service.frontend.parts.state.closes)
        await service.engine.output(sent.handle, Output((), STOP))
        assert (await asyncio.wait_for(call.read(), 30)).embeddings
        error = await refusal(asyncio.wait_for(call.read(), 30))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, 30)


async def test_clients_that_reset_streams_leave_nothing(checkpoint):
    """Whatever the server is about to do: read, wait for the engine, or answer."""

    def script(request):
        return pool(request) if len(request.prompt_token_ids) < 16 else []

    async with run_service(checkpoint, script, max_multiplexed_requests=2, **EMBEDS) as service:
        parts = service.frontend.parts
        for sent in range(6):
            for turns in range(8):
                call = embed(service).EmbedStream()
                for number in range(sent):
                    await call.write(text("a" if number % 2 else "this is never answered"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
        await until(lambda: not any(t.get_name().startswith("ordered stream") for t in asyncio.all_tasks()))
        assert not (parts.generator.registry.num_requests or parts.limits.num_calls)
        assert (await embed(service).Embed(text("a"))).embeddings


async def test_a_streams_deadline_ends_its_requests(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call, sent, _ = await in_time(
            service, lambda seconds: embed(service).EmbedStream(each_of(text()), timeout=seconds)
        )
        _, error = await collect(call)
        assert error is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        aborted = await asyncio.wait_for(service.engine.aborts.get(), 30)
        assert aborted.handle == sent.handle


async def test_a_message_that_cannot_be_parsed_ends_its_stream(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        stream = service.channel.stream_stream("/tei.v1.Embed/EmbedStream")
        found, error = await collect(stream(each_of(text("a").SerializeToString(), b"\xff")))
        assert error is not None and error.code() is grpc.StatusCode.INVALID_ARGUMENT and len(found) == 1
        await until(lambda: service.frontend.parts.limits.num_calls == 0)
