"""Messages that are small on the wire and large where they are decoded, kept or quoted."""

import json
from typing import Any

import grpc
import pytest

from frontend.auth.tokens import digest_of, entry_line
from frontend.call.messages import LARGE_MESSAGE_BYTES, SMALL_MESSAGE_BYTES
from frontend.errors import MAX_NAME, MAX_TEXT, InvalidRequest, ModelNotFound, to_status
from frontend.http.exchange import parse_object
from frontend.rpc.interceptors.decoding import MAX_FIELDS, MAX_NESTED, has_too_many_fields
from frontend.streams import multiplexer
from frontend.validation.json_objects import MAX_VALUES, read_object
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2
from pagewire_gateways.open_inference.requests import read_infer_request
from pagewire_gateways.protos import open_inference_pb2 as oip
from tests.frontend.auth.test_authenticator import bearer
from tests.frontend.fakes import details_of, make_request, run_service, say, until
from tests.frontend.rpc.interceptors.test_decoding import field

GENERATE = generation_pb2.GenerateRequest
DESCRIPTOR = GENERATE.DESCRIPTOR


def empty_messages(count: int) -> bytes:
    """A request with so many empty messages in its conversation."""
    return field(3, field(3, bytes([1 << 3 | 2, 0]) * count))


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (empty_messages(MAX_NESTED - 2), False),
        (empty_messages(MAX_NESTED + 1), True),
        (empty_messages(MAX_NESTED + 1) + b"\x1a\x7f\x1a\x7f", True),
        (b"\x08\x01" * MAX_FIELDS, False),
        (b"\x08\x01" * (MAX_FIELDS + 1), True),
        ((b"\x08" + b"\xff" * 9 + b"\x01") * (MAX_FIELDS // 5), True),
        (b"\x0b\x0c" * MAX_FIELDS, True),
        (b"\xff" * (1 << 22), False),
        (GENERATE(sampling={"logit_bias": dict.fromkeys(range(262_144), 1.0)}).SerializeToString(), False),
        (GENERATE(prompt={"token_ids": {"ids": range(1_000_000)}}).SerializeToString(), False),
        (GENERATE(prompt={"text": "[{:," * 1_000_000}).SerializeToString(), False),
    ],
    ids=[
        "messages", "one more", "with a torn one behind", "numbers", "one more number", "long numbers",
        "groups", "garbage", "a bias for each token", "token ids", "text",
    ],
)  # fmt: skip
def test_fields_are_counted_before_they_are_decoded(data: bytes, is_refused: bool) -> None:
    assert has_too_many_fields(data, DESCRIPTOR) == is_refused


def test_fields_of_messages_inside_messages_count_wherever_they_are() -> None:
    """The count of a valid request is that of its fields: no field hides another one."""
    request = make_request(
        sampling={"logit_bias": {3: 1.0}}, stopping={"stop": ["a", "b"], "max_tokens": 300}
    )
    data = request.SerializeToString()
    for place in range(len(data)):  # cut anywhere it is no message, and no error either
        assert not has_too_many_fields(data[:place], DESCRIPTOR)
    inner = field(7, field(1, field(1, b"x") + field(2, field(5, field(1, b"") * MAX_NESTED))))
    assert has_too_many_fields(field(3, field(3, inner)), DESCRIPTOR)  # in a template's arguments


async def test_a_message_of_empty_messages_is_refused_undecoded(checkpoint, model, monkeypatch):
    """14 MiB of them stopped the loop for a second, and took 750 MiB."""
    monkeypatch.setattr("frontend.rpc.interceptors.decoding.MAX_NESTED", 1000)
    async with run_service(checkpoint, model=model) as service:
        bomb = empty_messages(100_000)
        command = field(generation_pb2.GenerateMultiplexedRequest.GENERATE_FIELD_NUMBER, bomb)
        for method, data in (("Generate", bomb), ("GenerateMultiplexed", command)):
            call = service.channel.stream_stream(f"/pagewire.v1.GenerationService/{method}")(iter([data]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call:
                    pass
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert details_of(caught.value)["ErrorInfo"].reason == "TOO_MANY_FIELDS"


async def test_requests_of_many_parts_are_checked_in_turns(checkpoint, model, tmp_path, monkeypatch):
    """80 KB of them take the event loop a tenth of a second: one tenant's filled it."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + "".join(entry_line(digest_of(name), name, {}) for name in ("a", "b")))
    checked = []

    def check(request: generation_pb2.GenerateRequest, limits: Limits) -> None:
        checked.append(request.request_id)
        raise InvalidRequest({"prompt": "is checked"})

    monkeypatch.setattr("frontend.streams.generator.check_generate", check)
    chat = {"messages": [{"role": "user", "content": [{"text": "x"}] * 4000}]}
    async with run_service(checkpoint, model=model, auth_file=str(tokens)) as service:
        turns = service.frontend.parts.large_messages._turns
        await turns.begin("other")
        calls = []
        for place, name in enumerate("aaaab"):
            large = make_request(request_id=f"{name}{place}", prompt={"chat": chat})
            assert SMALL_MESSAGE_BYTES < large.ByteSize() < LARGE_MESSAGE_BYTES
            calls.append(service.generation.GenerateUnary(large, metadata=bearer(name)))
            await until(lambda: turns.num_waiting == len(calls))
        with pytest.raises(grpc.aio.AioRpcError, match="is checked"):
            small = make_request(request_id="small")
            await service.generation.GenerateUnary(small, metadata=bearer("a"))
        turns.end("other")
        assert {await call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert checked == ["small", "a0", "b4", "a1", "a2", "a3"]


@pytest.mark.parametrize(
    "body",
    [
        "{" + ",".join(f'"{key}":0' for key in range(MAX_VALUES // 4)) + "}",
        '{"a":[' + "[]," * (MAX_VALUES // 2) + "0]}",
        '{"a":[' + '"",' * MAX_VALUES + "0]}",
    ],
    ids=["keys", "lists", "strings"],
)
def test_json_of_too_many_values_is_not_parsed(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(InvalidRequest, match="must have at most"):
        parse_object(body.encode(), {"content-type": "application/json"})
    with pytest.raises(InvalidRequest, match="must have at most"):
        read_object(body, "sampling_parameters")


def infer(**changes: Any) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(**changes)
    for name in ("text_input", "sampling_parameters"):
        request.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"{}")
    return request


def test_parameters_of_tensors_are_bounded() -> None:
    many = infer()
    for number in range(1000):
        many.parameters[f"p{number}"].bool_param = True
    long = infer()
    long.inputs[1].contents.bytes_contents[0] = b'{"top_k": 1' + b" " * (1 << 16) + b"}"
    for request, where in ((many, "parameters"), (long, "sampling_parameters")):
        with pytest.raises(InvalidRequest, match=f"{where}: must be at most"):
            read_infer_request(request)
    assert read_infer_request(infer()).request.prompt.text == "{}"


def test_statuses_quote_little_of_what_a_client_sent() -> None:
    """The name of a model was returned in a trailer of 16 MiB."""
    status = to_status(ModelNotFound("x" * 1_000_000))
    assert len(status.SerializeToString()) < 1000
    status = to_status(InvalidRequest({"y" * 1_000_000: "z" * 1_000_000}))
    assert len(status.SerializeToString()) < 2 * MAX_TEXT + MAX_NAME + 200


async def test_bad_words_of_many_tokens_are_refused(checkpoint, model):
    """A worker has a place for each token of each of them, for each row, and reads all in every step."""
    async with run_service(checkpoint, say([65]), model=model) as service:
        problem = "bad_words: must be of at most 128 tokens each, not 4"
        with pytest.raises(grpc.aio.AioRpcError, match=problem):
            await service.generation.GenerateUnary(make_request(sampling={"bad_words": ["fine", "x" * 400]}))
        await service.generation.GenerateUnary(make_request(sampling={"bad_words": ["x" * 127] * 128}))


async def test_a_stream_that_is_not_read_keeps_no_long_ids(checkpoint, model):
    """64 rejections with ids of 16 MiB held a gigabyte."""
    async with run_service(checkpoint, say([65]), model=model) as service:
        call = service.generation.GenerateMultiplexed()
        request = make_request(request_id="i" * 200_000)
        for _ in range(3):
            await call.write(generation_pb2.GenerateMultiplexedRequest(generate=request))
        await call.done_writing()
        errors = [error async for batch in call for error in batch.errors]
        assert [(error.request_id, error.code) for error in errors] == [("i" * 256, 3)] * 3
        assert all("request_id: must be at most 256 bytes" in error.message for error in errors)
        assert len(errors) <= multiplexer.MAX_ERRORS


async def test_a_tensor_request_that_is_refused_keeps_no_long_id(checkpoint, model):
    async with run_service(checkpoint, say([65]), model=model, open_inference=True) as service:
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        read = oip.ModelStreamInferResponse.FromString
        data = infer(id="i" * 200_000).SerializeToString()
        call = service.channel.stream_stream(path, response_deserializer=read)(iter([data]))
        answers = [answer async for answer in call]
        assert [len(answer.infer_response.id) for answer in answers] == [256]
