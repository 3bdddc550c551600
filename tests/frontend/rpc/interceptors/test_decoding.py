"""Bytes that are no message."""

import grpc
import pytest

from frontend.grpc_services import DESCRIPTORS
from pagewire.v1 import tokenizer_pb2
from tests.frontend.fakes import details_of, run_service


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    length, size = len(content), bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


def deep_request(depth: int) -> bytes:
    """A request whose template_kwargs hold lists in lists: Python's protobuf would not write it."""
    value = b""
    for _ in range(depth):
        value = field(6, field(1, value))  # Value.list_value, ListValue.values
    kwargs = field(1, field(1, b"x") + field(2, value))
    return field(3, field(3, field(7, kwargs)))  # prompt, chat, template_kwargs


GARBAGE = {
    "wrong wire type": b"\x0a",
    "length beyond the end": b"\x1a\xff\xff\xff\xff\x0f",
    "an end without a beginning": b"\x0c",
    "field zero": b"\x02\x01a",
    "not UTF-8": b"\x0a\x02\xff\xfe",
    "a varint of eleven bytes": b"\x08" + b"\xff" * 11,
}


def methods():
    return [f"/{service.full_name}/{method.name}" for service in DESCRIPTORS for method in service.methods]


async def status_of(service, method: str, data: bytes):
    call = service.channel.stream_stream(method)(iter([data]))
    async for _ in call:
        pass
    return call


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_is_the_clients_fault_and_says_nothing_of_us(checkpoint, model, garbage):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status_of(service, "/pagewire.v1.GenerationService/Generate", GARBAGE[garbage])
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details_of(caught.value)["ErrorInfo"].reason == "MALFORMED_MESSAGE"
        assert "Exception" not in caught.value.details()


async def test_no_method_answers_garbage_as_a_fault_of_ours(checkpoint, model):
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    async with run_service(checkpoint, model=model) as service:
        for method in [*methods(), "/grpc.health.v1.Health/Check", reflection]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status_of(service, method, GARBAGE["length beyond the end"])
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, method


async def test_nesting_ends_where_protobuf_says(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        for depth in (200, 5000):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status_of(service, "/pagewire.v1.GenerationService/Generate", deep_request(depth))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        prompts = tokenizer_pb2.TokenizeRequest(prompts=[{"text": "hi"}])
        assert (await service.tokenizer.Tokenize(prompts)).results[0].count, "and goes on"
