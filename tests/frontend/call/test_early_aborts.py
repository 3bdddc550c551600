"""An Abort finds a request that waits for its tenant's turn to be checked, whatever is asked for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from frontend.call.messages import SMALL_MESSAGE_BYTES
from pagewire.v1 import generation_pb2, pooling_pb2
from tests.frontend.fakes import Service, abort_in_turn, finishes_of, make_request, run_service

ABORTED = generation_pb2.FINISH_REASON_ABORTED
TEXT = {"text": "x" * SMALL_MESSAGE_BYTES, "truncate_to": 10}


async def generate(service: Service) -> list[Any]:
    """Returns how the request "mine" ends."""
    messages = [
        each async for each in service.generation.Generate(make_request(request_id="mine", prompt=TEXT))
    ]
    return [finish.reason for finish in finishes_of(messages)]


async def multiplexed(service: Service) -> list[Any]:
    async def requests() -> AsyncIterator[generation_pb2.GenerateMultiplexedRequest]:
        one = make_request(request_id="mine", prompt=TEXT)
        yield generation_pb2.GenerateMultiplexedRequest(generate=one)

    call = service.generation.GenerateMultiplexed(requests())
    return [finish.reason async for each in call for finish in finishes_of(each.responses)]


async def embed(service: Service) -> list[Any]:
    request = pooling_pb2.EmbedRequest(request_id="mine", inputs=[TEXT, {"text": "a"}])
    return await code_of(service.pooling.Embed(request))


async def score(service: Service) -> list[Any]:
    request = pooling_pb2.ScoreContinuationsRequest(request_id="mine", prompt=TEXT, continuations=["a", "b"])
    return await code_of(service.pooling.ScoreContinuations(request))


async def code_of(call: Awaitable[Any]) -> list[Any]:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call
    return [ended.value.code()]


@pytest.mark.parametrize(
    ("ask", "end"),
    [
        (generate, ABORTED),
        (multiplexed, ABORTED),
        (embed, grpc.StatusCode.ABORTED),
        (score, grpc.StatusCode.ABORTED),
    ],
)
async def test_an_abort_of_what_waits_for_its_turn(
    ask: Callable[[Service], Awaitable[list[Any]]], end: Any, checkpoint: Path
) -> None:
    """Nothing of it reaches the engine."""
    async with run_service(checkpoint, pooling_type="last") as service:
        assert await abort_in_turn(service, lambda: ask(service)) == [end]
