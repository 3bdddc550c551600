"""Our own API as a target: what is sent, what is counted, and how failures are called."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pagewire.bench.prompts import BenchRequest
from pagewire.bench.targets.grpc_target import GrpcTarget
from pagewire.bench.targets.target import OutputOptions, RequestFailed
from pagewire.client.aio import AsyncClient
from pagewire.v1 import generation_pb2
from tests.pagewire import fakes


@pytest.fixture
def service() -> Iterator[fakes.FakeService]:
    fake = fakes.FakeService()
    with fakes.running(fake) as fake.address:
        yield fake


def answer(request: Any, context: Any) -> Iterator[generation_pb2.GenerateResponse]:
    for place, count in enumerate((1, 2)):
        ids = [7] * count
        part = generation_pb2.SequenceOutput(index=0, token_ids=ids, position=place, token_count=count)
        if place:
            part.finish.reason = generation_pb2.FINISH_REASON_MAX_TOKENS
        usage = generation_pb2.Usage(prompt_tokens=5, completion_tokens=3) if place else None
        yield generation_pb2.GenerateResponse(sequences=[part], usage=usage)


async def test_an_answer(service: fakes.FakeService):
    service.respond = answer
    counts: list[int] = []
    async with GrpcTarget(AsyncClient(service.address), OutputOptions(0.5, ignore_eos=True)) as target:
        assert (await target.open()).server == "pagewire 1"
        found = await target.send(BenchRequest([1, 2], 9), counts.append)
    assert counts == [1, 2] and found.prompt_tokens == 5 and found.completion_tokens is None
    request = service.requests[-1]
    assert list(request.prompt.token_ids.ids) == [1, 2]
    assert request.sampling.temperature == 0.5
    assert request.stopping.max_tokens == 9 and request.stopping.ignore_eos


async def test_failures_are_called_by_their_status(service: fakes.FakeService):
    def refuse(request: Any, context: Any) -> Iterator[generation_pb2.GenerateResponse]:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        yield

    service.respond = refuse
    async with GrpcTarget(AsyncClient(service.address), OutputOptions(0.0, ignore_eos=False)) as target:
        with pytest.raises(RequestFailed, match="RESOURCE_EXHAUSTED: the queue is full"):
            await target.send(BenchRequest("hi", 1), lambda tokens: None)
    assert not service.requests[-1].stopping.HasField("ignore_eos")
