"""grpc.health.v1: the state of the engine, for probes and load balancers."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.grpc_services import SERVICES
from tests.frontend.fakes import run_service
from tests.patience import PATIENCE_S

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def request(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_check(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        names = ("", *SERVICES)
        assert [(await stub.Check(request(name))).status for name in names] == [NOT_SERVING] * len(names)
        await service.engine.start()
        await service.frontend.wait_until_serving()
        assert [(await stub.Check(request(name))).status for name in names] == [SERVING] * len(names)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request("no.such.Service"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.skipif(
    not hasattr(health_pb2, "HealthListRequest"), reason="grpcio-health-checking has List from 1.85 on"
)
async def test_list(checkpoint, model):
    """The state of every service at once."""
    async with run_service(checkpoint, model=model, wait=False) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)

        async def listed() -> dict[str, int]:
            statuses = (await stub.List(health_pb2.HealthListRequest())).statuses
            return {name: one.status for name, one in statuses.items()}

        assert await listed() == dict.fromkeys(("", *SERVICES), NOT_SERVING)
        await service.engine.start()
        await service.frontend.wait_until_serving()
        assert await listed() == dict.fromkeys(("", *SERVICES), SERVING)


@pytest.mark.parametrize("name", ["", SERVICES[0]])
async def test_watch_follows_every_change(checkpoint, model, name):
    """Starting, serving, engine gone, another engine, shutting down."""
    async with run_service(checkpoint, model=model, wait=False) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        watch = aiter(stub.Watch(request(name)))
        assert (await anext(watch)).status == NOT_SERVING
        await service.engine.start()
        assert (await anext(watch)).status == SERVING
        await service.engine.stop()
        assert (await anext(watch)).status == NOT_SERVING
        service.engine.epoch = 2
        await service.engine.start()
        assert (await anext(watch)).status == SERVING
        stopping = asyncio.ensure_future(service.frontend.stop(5))
        assert (await anext(watch)).status == NOT_SERVING
        await service.channel.close()
        await stopping


async def test_watching_a_service_that_is_not_there(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        watch = aiter(stub.Watch(request("no.such.Service")))
        assert (await anext(watch)).status == UNKNOWN


async def test_a_stranger_has_so_many_watches_on_a_connection(checkpoint, model, monkeypatch):
    """Others on their connections, and callers with a token, are not concerned."""
    monkeypatch.setattr("frontend.servicers.health.MAX_WATCHES", 2)
    async with run_service(checkpoint, model=model) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        watches = [stub.Watch(request("")) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(stub.Watch(request(""))))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options) as other:
            watch = health_pb2_grpc.HealthStub(other).Watch(request(""))
            assert (await watch.read()).status == SERVING
            watch.cancel()
        watches[0].cancel()
        again = await _watch_when_there_is_room(stub)
        for each in (watches[1], again):
            each.cancel()


async def _watch_when_there_is_room(stub: health_pb2_grpc.HealthStub) -> grpc.aio.UnaryStreamCall:
    """The server notices a cancelled call a little later than its client."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            watch = stub.Watch(request(""))
            try:
                assert (await watch.read()).status == SERVING
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)
            else:
                return watch
