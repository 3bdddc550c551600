"""The engine dies and comes back: streams go on where they were, and end where they would have ended.

The fake engine's answer is a function of the request, sequence and position, as a real one's is. Each
test cuts a stream somewhere and compares it with an uncut one.
"""

import asyncio
import contextlib

import grpc
import pytest
from google.rpc import code_pb2

from frontend.engine import journal
from frontend.engine.journal import MAX_RESENT
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import (
    Output,
    details_of,
    finishes_of,
    make_request,
    run_service,
    text_of,
    tokens_of,
)
from tests.frontend.scripted_answers import ANSWERS, EOS, TEXTS, delivered_of, steps_of
from tests.patience import soon

TIME_LIMIT = generation_pb2.FINISH_REASON_TIME_LIMIT
ABORTED = generation_pb2.FINISH_REASON_ABORTED


async def next_of(queue: asyncio.Queue):
    return await soon(queue.get())


async def play(service, num_steps: int | None = None) -> engine_pb2.AddRequest:
    """Answers the next request, this many steps of it."""
    request = await next_of(service.engine.requests)
    for step in steps_of(request)[:num_steps]:
        await service.engine.output(request.handle, *step, queue_us=0)
    return request


async def restart(service) -> None:
    """Another core at the same address. What the last one said has arrived before."""
    await service.engine.stop()
    while service.frontend.state.serves:
        await service.frontend.state.changed()
    service.engine.epoch += 1
    await service.engine.start()


async def has(messages: list[generation_pb2.GenerateResponse], count: int) -> None:
    """Waits until so many tokens of all sequences are there."""
    while sum(output.token_count for message in messages for output in message.sequences) < count:
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def streaming(service, **fields):
    """(messages so far, the task that reads them)."""
    fields.setdefault("output", {"token_ids": True})
    messages: list[generation_pb2.GenerateResponse] = []
    call = service.generation.Generate(make_request(**fields))

    async def read() -> None:
        async for message in call:
            messages.append(message)

    task = asyncio.create_task(read())
    try:
        yield messages, task
    finally:
        call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await task


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 6, 20])
async def test_text_goes_on_exactly(checkpoint, model, cut):
    """Also in the middle of a code point (3 and 4 are inside of the smiley)."""
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        first = await play(service, cut)
        await has(messages, cut)
        await restart(service)
        again = await play(service)
        await soon(task)
        assert delivered_of(again) == ({0: ANSWERS[0][:cut]} if cut else {}) and not again.ended_indexes
        assert again.handle != first.handle and again.request_id == first.request_id
        assert (again.sampling, again.stopping, again.prompt_token_ids, list(again.bad_words)) == (
            first.sampling,
            first.stopping,
            first.prompt_token_ids,
            list(first.bad_words),
        )
        assert tokens_of(messages) == ANSWERS[0] and text_of(messages) == TEXTS[0]
        positions = [output.position for message in messages for output in message.sequences]
        assert positions == sorted(set(positions))
        assert [finish.reason for finish in finishes_of(messages)] == [EOS]
        assert messages[-1].usage.completion_tokens == len(ANSWERS[0])
        assert sum(message.HasField("prompt") for message in messages) == 1


async def test_a_stop_string_across_the_cut(checkpoint, model):
    """What is held back when the engine dies is still held back afterwards."""
    stop = "hello, h"
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, stopping={"stop": [stop]}) as (messages, task),
    ):
        cut = len(TEXTS[0][: TEXTS[0].index(stop) + 3].encode())
        await play(service, cut)
        await has(messages, cut)
        assert "hel" not in text_of(messages)
        await restart(service)
        again = await play(service)
        await soon(task)
        assert len(delivered_of(again)[0]) == cut
        assert text_of(messages) == TEXTS[0][: TEXTS[0].index(stop)]
        assert [finish.stop for finish in finishes_of(messages)] == [stop]


async def test_a_stop_regex_across_the_cut(checkpoint, model):
    """The attempt of the expression is a function of the tokens."""
    expression = "hel+o, [a-h]"
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, stopping={"stop_regex": [expression]}) as (messages, task),
    ):
        border = TEXTS[0].index("hello, h")
        cut = len(TEXTS[0][: border + 3].encode())
        await play(service, cut)
        await has(messages, cut)
        assert text_of(messages) == TEXTS[0][:border]
        await restart(service)
        again = await play(service)
        await soon(task)
        assert len(delivered_of(again)[0]) == cut and not again.stopping.stop_regex
        assert text_of(messages) == TEXTS[0][:border]
        assert [finish.stop_regex for finish in finishes_of(messages)] == [expression]


async def test_sequences_that_have_ended_do_not_run_again(checkpoint, model):
    """The second one ends by a stop string, of which the core knows nothing, before the engine dies."""
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, sampling={"n": 2}, stopping={"stop": ["sec"]}) as (messages, task),
    ):
        await play(service, 10)
        await has(messages, 10 + 7)
        await restart(service)
        again = await play(service)
        await soon(task)
        assert list(again.ended_indexes) == [1] and delivered_of(again) == {0: ANSWERS[0][:10]}
        assert text_of(messages, 0) == TEXTS[0] and text_of(messages, 1) == "the "
        assert len(tokens_of(messages, 1)) == len("the sec")
        assert len(finishes_of(messages)) == 2


async def test_everything_of_the_request_travels_again(checkpoint, model):
    """Penalties, bad words, minimum length, seed; and time goes on running."""
    fields = {
        "sampling": {
            "seed": 2**63 + 5,
            "temperature": 0.7,
            "frequency_penalty": 0.5,
            "bad_words": ["the"],
            "logit_bias": {7: 1.5},
        },
        "stopping": {"min_tokens": 3, "max_tokens": 100, "time_limit": {"seconds": 1000}},
        "cache": {"salt": "s"},
        "priority": 3,
        "tenant": "t",
    }
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request(**fields), timeout=2000)
        first = await play(service, 5)
        await anext(aiter(call))
        await restart(service)
        again = await next_of(service.engine.requests)
        assert (again.priority, again.tenant) == (3, "t")
        assert 0 < first.age_us < again.age_us
        assert 0 < again.deadline.ToNanoseconds() < first.deadline.ToNanoseconds()
        assert again.again and not first.again
        assert 0 < again.stopping.time_limit.ToNanoseconds() < 1000 * 10**9
        for request in (first, again):
            del request.delivered[:]
            request.ClearField("deadline")
            request.ClearField("handle")
            request.ClearField("age_us")
            request.ClearField("again")
            request.stopping.ClearField("time_limit")
        assert first == again
        call.cancel()


async def test_unary_calls_wait_as_well(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        call = asyncio.ensure_future(_unary(service))
        await play(service, 7)
        while service.frontend.engine._journal.in_flight()[0].sink._num_new < 7:
            await asyncio.sleep(0.002)
        await restart(service)
        await play(service)
        assert text_of([await soon(call)]) == TEXTS[0]


async def _unary(service) -> generation_pb2.GenerateResponse:
    return await service.generation.GenerateUnary(make_request())


async def test_the_core_says_itself_that_it_dies(checkpoint, model):
    """Its worker has died: it fails everything with ENGINE_DEAD, then it is gone. From its word on new
    requests are not sent to it, and where they do not wait they are refused."""
    async with (
        run_service(checkpoint, model=model, ready_timeout=0) as service,
        streaming(service) as (messages, task),
    ):
        request = await play(service, 2)
        await has(messages, 2)
        await service.engine.fail(request.handle, code_pb2.UNAVAILABLE, "ENGINE_DEAD", "dead")
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await service.generate()
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "RetryInfo" in details_of(refusal.value)
        await restart(service)
        await play(service)
        await soon(task)
        assert text_of(messages) == TEXTS[0]


async def test_a_core_that_could_not_reach_us_lives(checkpoint, model):
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        request = await play(service, 2)
        await has(messages, 2)
        await service.engine.fail(request.handle, code_pb2.UNAVAILABLE, "FRONTEND_LOST", "lost")
        await play(service)
        await soon(task)
        assert tokens_of(messages) == ANSWERS[0]


@pytest.mark.parametrize("wrong", [5, 1])
async def test_a_gap_and_a_repeat(checkpoint, model, wrong):
    """Positions 0 to 2 have arrived. What does not follow them is dropped, and asked for again."""
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        request = await play(service, 3)
        await service.engine.output(request.handle, Output([9], position=wrong))
        again = await play(service)
        assert (await next_of(service.engine.aborts)).handle == request.handle
        await soon(task)
        assert delivered_of(again) == {0: ANSWERS[0][:3]}
        assert tokens_of(messages) == ANSWERS[0] and text_of(messages) == TEXTS[0]
        assert service.frontend.engine.protocol_errors == 1


async def test_a_core_that_counts_wrong_again_and_again(checkpoint, model):
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        for _ in range(1 + MAX_RESENT):
            request = await next_of(service.engine.requests)
            await service.engine.output(request.handle, Output([9], position=8))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await soon(task)
        assert failure.value.code() == grpc.StatusCode.INTERNAL
        assert details_of(failure.value)["ErrorInfo"].reason == "INTERNAL"
        assert messages == [] and service.engine.requests.empty()


async def test_a_request_that_the_engine_always_dies_of_ends(checkpoint, model, monkeypatch):
    """Progress counts: it is sent again MAX_DEATHS times with the same tokens, and not once more."""
    monkeypatch.setattr(journal, "MAX_DEATHS", 3)
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        for count in (1, 1, 0, 0):
            await play(service, count)
            await has(messages, 2 if count == 0 else len(messages) + count)
            await restart(service)
        await next_of(service.engine.requests)
        await service.engine.stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await soon(task)
        assert failure.value.code() == grpc.StatusCode.INTERNAL
        assert details_of(failure.value)["ErrorInfo"].reason == "REQUEST_QUARANTINED"
        assert tokens_of(messages) == ANSWERS[0][:2]
        assert len(service.frontend.engine.journal) == 0


async def test_a_core_that_refuses_to_go_on(checkpoint, model):
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        await play(service, 2)
        await has(messages, 2)
        await restart(service)
        again = await next_of(service.engine.requests)
        await service.engine.fail(again.handle, code_pb2.INVALID_ARGUMENT, "TOO_LONG", "is too long")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await soon(task)
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_no_core_returns(checkpoint, model):
    async with (
        run_service(checkpoint, model=model, resume_timeout=0.05) as service,
        streaming(service) as (messages, task),
    ):
        await play(service, 2)
        await has(messages, 2)
        await service.engine.stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await soon(task)
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(failure.value)["ErrorInfo"].reason == "ENGINE_DEAD"
        assert tokens_of(messages) == ANSWERS[0][:2]


async def test_a_request_that_arrives_while_no_core_serves_waits_for_one(checkpoint, model):
    """A kill costs a new request what it costs a stream: a pause."""
    async with run_service(checkpoint, model=model) as service:
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        async with streaming(service) as (messages, task):
            while not len(service.frontend.engine.journal):
                await asyncio.sleep(0.002)
            service.engine.epoch += 1
            await service.engine.start()
            assert not (await play(service)).again
            await soon(task)
            assert tokens_of(messages) == ANSWERS[0]


async def test_a_request_that_arrives_waits_no_longer_than_its_deadline(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await service.generation.GenerateUnary(make_request(), timeout=0.1)
        assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        while len(service.frontend.engine.journal):
            await asyncio.sleep(0.002)


async def test_a_request_that_arrives_waits_no_longer_than_the_frontend_lets_it(checkpoint, model):
    async with run_service(checkpoint, model=model, ready_timeout=0.05) as service:
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await service.generation.GenerateUnary(make_request(), timeout=30)
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(failure.value)["ErrorInfo"].reason == "ENGINE_NOT_READY"
        assert details_of(failure.value)["RetryInfo"].retry_delay.ToMilliseconds() > 0


async def test_the_time_limit_passes_while_no_core_is_there(checkpoint, model):
    """It ends the request normally, as it does with a core."""
    limit = {"time_limit": {"nanos": 50_000_000}}
    async with run_service(checkpoint, model=model) as service, streaming(service, stopping=limit) as parts:
        messages, task = parts
        await play(service, 3)
        await has(messages, 3)
        await service.engine.stop()
        await soon(task)
        assert [finish.reason for finish in finishes_of(messages)] == [TIME_LIMIT]
        assert len(service.frontend.engine.journal) == 0


async def test_a_client_that_leaves_while_its_stream_waits(checkpoint, model):
    async with run_service(checkpoint, model=model) as service, streaming(service) as (messages, task):
        await play(service, 2)
        await has(messages, 2)
        await service.engine.stop()
        while service.frontend.state.serves:  # else the abort is on its way, and comes to the next core
            await service.frontend.state.changed()
        task.cancel()
        while len(service.frontend.engine.journal):
            await asyncio.sleep(0.002)
        service.engine.epoch += 1
        await service.engine.start()
        await soon(service.frontend.wait_until_serving())
        assert (await service.frontend.engine.questions.loads())[0].kv_total_tokens
        assert service.engine.requests.empty() and service.engine.aborts.empty()


async def test_abort_while_its_stream_waits(checkpoint, model):
    async with (
        run_service(checkpoint, model=model) as service,
        streaming(service, request_id="x") as (messages, task),
    ):
        await play(service, 2)
        await has(messages, 2)
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["x"]))
        assert list(response.aborted_request_ids) == ["x"]
        await soon(task)
        assert [finish.reason for finish in finishes_of(messages)] == [ABORTED]


async def test_many_streams_and_many_deaths(checkpoint, model):
    """Whatever had arrived of each when the engine died, each goes on from there."""
    async with run_service(checkpoint, model=model) as service:
        streams = [
            asyncio.create_task(service.generate(request_id=str(number), output={"token_ids": True}))
            for number in range(40)
        ]
        for death in range(3):
            for number in range(40):
                await play(service, 1 + (number + death) % 4)
            await restart(service)
        for _ in range(40):
            await play(service)
        for messages in await asyncio.gather(*streams):
            assert tokens_of(messages) == ANSWERS[0] and text_of(messages) == TEXTS[0]
