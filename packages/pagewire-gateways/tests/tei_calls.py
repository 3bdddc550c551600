"""Calls of tei.v1, and what comes of them."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from pagewire.v1 import generation_pb2
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from tests.frontend.fakes import Service, details_of

LAST = Pooling(type=POOLING_TYPE_LAST, normalize=True)
STOP = generation_pb2.FINISH_REASON_STOP
EMBEDS: dict[str, Any] = {"tei": True, "pooling_type": "last"}


def embed(service: Service) -> Any:
    return tei_pb2_grpc.EmbedStub(service.channel)


def tokenize(service: Service) -> Any:
    return tei_pb2_grpc.TokenizeStub(service.channel)


def text(inputs: str = "hi", **fields: Any) -> tei_pb2.EmbedRequest:
    return tei_pb2.EmbedRequest(inputs=inputs, **fields)


async def each_of(*messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def collect(call: Any) -> tuple[list[Any], grpc.aio.AioRpcError | None]:
    """All answers of a stream, and the error that ends it."""
    answers: list[Any] = []
    try:
        async for answer in call:
            answers.append(answer)
    except grpc.aio.AioRpcError as error:
        return answers, error
    return answers, None


async def code_of(call: Any) -> grpc.StatusCode | None:
    """The code of the error that a call ends with; None: it has none."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    return [each.field for each in details_of(error)["BadRequest"].field_violations]
