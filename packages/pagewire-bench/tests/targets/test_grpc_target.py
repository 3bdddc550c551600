"""Our own API as a target: what is sent, what is counted, and how failures are called."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from bench_fakes import answer
from pagewire.v1 import generation_pb2
from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.grpc_target import GrpcTarget
from pagewire_bench.targets.target import OutputOptions, RequestFailed
from pagewire_client.aio import AsyncClient
from tests.pagewire import fakes


@pytest.fixture
def service() -> Iterator[fakes.FakeService]:
    fake = fakes.FakeService()
    with fakes.running(fake) as fake.address:
        yield fake


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
