"""Calls whose inputs are requests: they are one to their client."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2

from pagewire.internal.v1.engine_pb2 import NamedAdapter
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2, pooling_pb2
from pagewire.v1.pooling_pb2 import EMBEDDING_KIND_TOKENS
from tests.frontend.fakes import Service, encode, in_time, pool, run_service
from tests.frontend.test_resume import next_of, restart

Request = pooling_pb2.EmbedRequest | pooling_pb2.ScoreRequest


def embed(*texts: str, **fields: Any) -> pooling_pb2.EmbedRequest:
    return pooling_pb2.EmbedRequest(inputs=[{"text": text} for text in texts], **fields)


def score(*texts: str, **fields: Any) -> pooling_pb2.ScoreRequest:
    documents = [{"text": text} for text in texts]
    return pooling_pb2.ScoreRequest(query={"text": "q"}, documents=documents, **fields)


@dataclass(frozen=True)
class Case:
    """An RPC whose inputs are requests. request: of some texts."""

    rpc: str
    request: Callable[..., Request]
    flags: dict[str, str]

    def run(self, checkpoint: Path, script: Any = None) -> AbstractAsyncContextManager[Service]:
        return run_service(checkpoint, script, **self.flags)

    def call(self, service: Service, *texts: str, **fields: Any) -> Any:
        return partial(getattr(service.pooling, self.rpc), self.request(*texts, **fields))


CASES = {
    "embed": Case("Embed", embed, {"pooling_type": "last"}),
    "embed tokens": Case("Embed", partial(embed, kind=EMBEDDING_KIND_TOKENS), {"pooling_type": "last"}),
    "score": Case("Score", score, {"score_tokens": "y,n"}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    found, template = CASES[request.param], tmp_path / "pair.jinja"
    template.write_text("{{ query }}:{{ document }}")
    if found.rpc == "Score":
        return replace(found, flags={**found.flags, "score_template": str(template)})
    return found


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_a_client_that_leaves_ends_all_of_them(checkpoint, case):
    async with case.run(checkpoint) as service:
        call = case.call(service, "a", "b", "c")()
        handles = {(await next_of(service.engine.requests)).handle for _ in range(3)}
        call.cancel()
        assert {(await next_of(service.engine.aborts)).handle for _ in range(3)} == handles


async def test_a_failure_of_one_is_the_failure_of_all(checkpoint, case):
    async with case.run(checkpoint) as service:
        call = asyncio.ensure_future(code_of(case.call(service, "a", "b")()))
        first, second = [(await next_of(service.engine.requests)).handle for _ in range(2)]
        await service.engine.fail(first, code_pb2.INTERNAL, "NO_LOGITS", "NaN")
        assert await call is grpc.StatusCode.INTERNAL
        assert (await next_of(service.engine.aborts)).handle == second


async def test_they_can_be_aborted_by_the_id_of_the_whole(checkpoint, case):
    async with case.run(checkpoint) as service:
        call = asyncio.ensure_future(code_of(case.call(service, "a", "b", request_id="mine")()))
        for _ in range(2):
            await next_of(service.engine.requests)
        response = await service.generation.Abort(generation_pb2.AbortRequest(request_ids=["mine"]))
        assert list(response.aborted_request_ids) == ["mine"]
        assert await call is grpc.StatusCode.ABORTED


async def test_a_deadline_goes_to_the_core(checkpoint, case):
    async with case.run(checkpoint) as service:
        start = case.call(service, "a")
        call, request, seconds = await in_time(service, lambda seconds: start(timeout=seconds))
        assert 0 < request.deadline.ToMilliseconds() < 1000 * seconds + 500  # by two clocks
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_they_outlive_the_core(checkpoint, case):
    """What had its vector is not computed again."""
    async with case.run(checkpoint) as service:
        call = case.call(service, "a", "b")()
        first = await next_of(service.engine.requests)
        await next_of(service.engine.requests)
        await service.engine.output(first.handle, *pool(first))
        while len(service.frontend.engine._journal) > 1:
            await asyncio.sleep(0.002)
        service.engine.script = pool
        await restart(service)
        again = await next_of(service.engine.requests)
        ends = {tuple(unpack_u32(each.prompt_token_ids)[-1:]) for each in (first, again)}
        assert ends == {tuple(encode("a")), tuple(encode("b"))} and service.engine.requests.empty()
        assert await call == await case.call(service, "a", "b")()


async def test_all_of_them_have_one_adapter(checkpoint, case):
    async with case.run(checkpoint, pool) as service:
        adapter = NamedAdapter(name="a", source="/a", digest=b"1" * 32)
        service.frontend.parts.engine.adapters._put(adapter)
        await case.call(service, "a", "b", adapter="a")()
        sent = [(await next_of(service.engine.requests)).adapter.digest for _ in range(2)]
        assert sent == [b"1" * 32] * 2
