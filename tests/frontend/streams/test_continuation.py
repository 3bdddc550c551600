"""A client continues a stream that broke off: both parts, joined, are the stream that did not break."""

import asyncio

import grpc
import pytest

from frontend.errors import InvalidRequest
from frontend.streams.continuation import CONTEXT_LENGTH, EOS, MAX_TOKENS, STOP
from frontend.validation.requests import check_generate
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import (
    END,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    details_of,
    encode,
    finishes_of,
    make_request,
    run_service,
    text_of,
    tokens_of,
)
from tests.frontend.scripted_answers import ANSWERS, TEXTS, delivered_of, steps_of

IDS = {"token_ids": True}


def continued(messages: list[generation_pb2.GenerateResponse], **fields) -> dict:
    """The request again, with what these messages have brought of each sequence."""
    indexes = {output.index for message in messages for output in message.sequences}
    sequences = [{"index": index, "token_ids": tokens_of(messages, index)} for index in sorted(indexes)]
    sampling = {"seed": 5, **fields.pop("sampling", {})}
    return {"output": IDS, **fields, "sampling": sampling, "continuation": {"sequences": sequences}}


async def whole(service, **fields) -> list[generation_pb2.GenerateResponse]:
    return await service.generate(**{"output": IDS, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": {"n": 2}},
        {"stopping": {"stop": ["hello, h"]}},
        {"stopping": {"stop": ["hello, h", "sec"], "include_stop": True}, "sampling": {"n": 2}},
        {"stopping": {"stop": ["says"], "min_tokens": 12}},
        {"output": {"token_ids": True, "echo": True}, "sampling": {"n": 2}},
        {"output": {"token_ids": True, "text": False}},
        {"output": {"token_ids": True, "token_bytes": True}},
        {"output": {"token_ids": True, "stream_interval": 4}},
    ],
    ids=["text", "n", "stop", "n-stop", "min-tokens", "echo", "no-text", "bytes", "interval"],
)
async def test_both_parts_are_the_whole(checkpoint, model, fields):
    """Broken after each message: inside code points, inside of a stop string, after the end of one
    sequence, and after everything."""
    async with run_service(checkpoint, steps_of, model=model) as service:
        reference = await whole(service, **fields)
        n = fields.get("sampling", {}).get("n", 1)
        for cut in range(1, len(reference) + 1):
            before = reference[:cut]
            after = await service.generate(**continued(before, **fields))
            for index in range(n):
                assert tokens_of(before, index) + tokens_of(after, index) == tokens_of(reference, index)
                assert text_of(before, index) + text_of(after, index) == text_of(reference, index)
                count = len(tokens_of(before, index))
                for message in after:
                    for output in message.sequences:
                        if output.index == index:
                            assert output.position == count
                            count += output.token_count
            assert sorted(map(str, finishes_of(after))) == sorted(map(str, finishes_of(reference)))
            assert after[-1].usage == reference[-1].usage
            assert after[0].prompt == reference[0].prompt and after[0].seed == 5


async def test_the_core_hears_what_was_delivered_and_what_has_ended(checkpoint, model):
    async with run_service(checkpoint, steps_of, model=model) as service:
        sequences = [{"index": 1, "token_ids": encode("the sec")}, {"index": 0, "token_ids": ANSWERS[0][:4]}]
        sampling, stopping = {"n": 2, "temperature": 0}, {"stop": ["sec"]}
        call = service.generation.Generate(
            make_request(sampling=sampling, stopping=stopping, continuation={"sequences": sequences})
        )
        request = await service.engine.requests.get()
        assert delivered_of(request) == {0: ANSWERS[0][:4]} and list(request.ended_indexes) == [1]
        call.cancel()


@pytest.mark.parametrize(
    ("token_ids", "stopping", "reason", "token"),
    [
        ([*encode("ab"), END], {}, EOS, END),
        (encode("ab."), {"stop_token_ids": encode(".")}, STOP, encode(".")[0]),
        (encode("abc"), {"max_tokens": 3}, MAX_TOKENS, 0),
        (encode("a" * (MAX_MODEL_LEN - 2)), {}, CONTEXT_LENGTH, 0),
    ],
)
async def test_what_was_complete_ends_at_once(checkpoint, model, token_ids, stopping, reason, token):
    """With its finish, no text, and without the core."""
    async with run_service(checkpoint, model=model) as service:
        (message,) = await service.generate(
            stopping=stopping,
            sampling={"temperature": 0},
            continuation={"sequences": [{"token_ids": token_ids}]},
        )
        (output,) = message.sequences
        assert (output.finish.reason, output.finish.token_id) == (reason, token)
        assert (output.text, output.position, output.token_count) == ("", len(token_ids), 0)
        assert message.usage.completion_tokens == len(token_ids)
        assert service.engine.requests.empty()


async def test_cumulative_and_unary(checkpoint, model):
    """Everything so far means the first part, too; a single answer has what is new."""
    async with run_service(checkpoint, steps_of, model=model) as service:
        fields = {
            "sampling": {"temperature": 0},
            "continuation": {"sequences": [{"token_ids": ANSWERS[0][:5]}]},
        }
        mode = generation_pb2.OutputOptions.MODE_CUMULATIVE
        messages = await service.generate(output={"token_ids": True, "mode": mode}, **fields)
        assert messages[-1].sequences[0].text == TEXTS[0] and messages[0].sequences[0].position == 0
        answer = await service.generation.GenerateUnary(make_request(**fields))
        assert answer.sequences[0].position == 5 and answer.sequences[0].text == TEXTS[0][2:]


async def test_a_continuation_survives_its_engine(checkpoint, model):
    """What the client held is delivered to the next core, too."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(
            make_request(
                sampling={"temperature": 0}, continuation={"sequences": [{"token_ids": ANSWERS[0][:3]}]}
            )
        )
        request = await service.engine.requests.get()
        await service.engine.output(request.handle, *steps_of(request)[0])
        while service.frontend.engine._journal.in_flight()[0].sink._num_new == 0:
            await asyncio.sleep(0.002)
        await service.engine.stop()
        service.engine.epoch, service.engine.script = 2, steps_of
        await service.engine.start()
        messages = [message async for message in call]
        assert text_of(messages) == TEXTS[0][2:]
        again = await service.engine.requests.get()
        assert delivered_of(again) == {0: ANSWERS[0][:4]}


LIMITS = Limits(512, MAX_MODEL_LEN, frozenset({END}), 16, 16)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"sequences": [{"index": 2}]}, "continuation.sequences[0].index"),
        ({"sequences": [{"index": 1}, {"index": 1}]}, "continuation.sequences[1].index"),
        ({"sequences": [{"index": 0}] * 3}, "continuation.sequences"),
        ({"sequences": [{"token_ids": [1] * MAX_MODEL_LEN}]}, "continuation.sequences[0].token_ids"),
    ],
)
def test_what_makes_no_sense_is_named(fields, path):
    with pytest.raises(InvalidRequest) as refusal:
        check_generate(make_request(sampling={"seed": 1, "n": 2}, continuation=fields), LIMITS)
    assert list(refusal.value.violations) == [path]


def test_a_seed_is_needed_where_chance_is():
    beams = {"beam_search": {"width": 2}}
    for sampling, fine in (
        ({}, False),
        ({"temperature": 0.5}, False),
        ({"temperature": 0}, True),
        (beams, True),
    ):
        request = make_request(sampling=sampling, continuation={"sequences": [{"index": 0}]})
        if fine:
            check_generate(request, LIMITS)
            continue
        with pytest.raises(InvalidRequest) as refusal:
            check_generate(request, LIMITS)
        assert list(refusal.value.violations) == ["sampling.seed"]


@pytest.mark.parametrize(
    ("token_ids", "stopping"),
    [
        (encode("abcd"), {"max_tokens": 3}),
        (encode("a" * MAX_MODEL_LEN), {}),
        ([END, *encode("a")], {}),
        (encode("a.b"), {"stop_token_ids": encode(".")}),
        (encode("stop it"), {"stop": ["stop"]}),
        ([VOCAB_SIZE], {}),
    ],
    ids=["max-tokens", "context", "eos", "stop-token", "stop", "vocabulary"],
)
async def test_what_no_server_has_delivered_is_refused(checkpoint, model, token_ids, stopping):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await service.generate(
                stopping=stopping,
                sampling={"temperature": 0},
                continuation={"sequences": [{"token_ids": token_ids}]},
            )
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details_of(failure.value)["BadRequest"].field_violations
        assert violation.field == "continuation.sequences[0].token_ids"
        assert service.engine.requests.empty()
