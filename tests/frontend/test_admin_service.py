"""AdminService over real gRPC."""

import asyncio

import grpc
import pytest
from google.protobuf import json_format

from frontend.servicers import admin
from pagewire import __version__
from pagewire.v1 import admin_pb2, pooling_pb2
from tests.frontend.fakes import Output, details_of, encode, make_request, run_service, say, text_of
from tests.patience import soon


async def info_of(service) -> admin_pb2.GetServerInfoResponse:
    return await service.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())


async def test_server_info(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        info = await info_of(service)
        assert info.state == admin_pb2.SERVER_STATE_STARTING and not info.engine_version
        await service.engine.start()
        await service.frontend.wait_until_serving()
        info = await info_of(service)
        assert (info.version, info.engine_version) == (__version__, "fake")
        assert info.state == admin_pb2.SERVER_STATE_SERVING and info.parallelism.tensor == 1
        assert info.instance_id == service.frontend.engine.identity.hex()
        assert info.start_time.seconds > 1_700_000_000
        config = json_format.MessageToDict(info.config)
        assert config["port"] == 0 and config["block_size"] == 16 and config["max_model_len"] == 200
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        assert (await info_of(service)).state == admin_pb2.SERVER_STATE_FAILED


async def test_load(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        service.engine.load.running_requests = 3
        load = (await service.admin.GetLoad(admin_pb2.GetLoadRequest())).load
        (rank,) = load.ranks
        assert (rank.running_requests, rank.kv_total_tokens) == (3, 1024) and load.time.seconds


async def test_watching_the_load(checkpoint, model, monkeypatch):
    """One message at once, then one for each change; none without."""
    monkeypatch.setattr(admin, "SHORTEST_INTERVAL", 0.005)
    async with run_service(checkpoint, model=model) as service:
        asked = 0
        answer = service.engine._answer

        async def counting(utility):
            nonlocal asked
            asked += 1
            await answer(utility)

        service.engine._answer = counting
        call = service.admin.WatchLoad(admin_pb2.WatchLoadRequest(min_interval={}))
        loads = aiter(call)
        assert (await anext(loads)).load.ranks[0].waiting_requests == 0
        while asked < 5:
            await asyncio.sleep(0.005)
        for number in (4, 5):
            service.engine.load.waiting_requests = number
            assert (await anext(loads)).load.ranks[0].waiting_requests == number
        call.cancel()


async def test_resetting_the_cache(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        await service.admin.ResetCache(admin_pb2.ResetCacheRequest())
        assert service.engine.num_resets == 1


async def test_without_an_engine_there_is_no_load(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        for call in (
            service.admin.GetLoad(admin_pb2.GetLoadRequest()),
            service.admin.ResetCache(admin_pb2.ResetCacheRequest()),
            service.admin.WatchLoad(admin_pb2.WatchLoadRequest()).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "RetryInfo" in details_of(caught.value)


@pytest.mark.parametrize("interval", [{"seconds": -1}, {"seconds": 10**6}])
async def test_an_interval_that_makes_no_sense(checkpoint, model, interval):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.admin.WatchLoad(admin_pb2.WatchLoadRequest(min_interval=interval)).read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "min_interval"


@pytest.mark.parametrize("method", ["StartProfile", "StopProfile"])
async def test_what_is_not_built(checkpoint, model, method):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(service.admin, method)(getattr(admin_pb2, f"{method}Request")())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert details_of(caught.value)["ErrorInfo"].reason == "FEATURE_UNSUPPORTED"


async def test_draining_and_resuming(checkpoint, model):
    """New requests are refused, those in flight go on; questions about the server are answered."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        handle = (await soon(service.engine.requests.get())).handle
        answer = await service.admin.Drain(admin_pb2.DrainRequest())
        assert answer.in_flight_requests == 1
        assert (await info_of(service)).state == admin_pb2.SERVER_STATE_DRAINING
        await refused(service)
        await service.admin.GetLoad(admin_pb2.GetLoadRequest())
        await service.engine.output(handle, Output(encode("bye"), 3))
        assert text_of([message async for message in call]) == "bye"
        assert (await service.admin.Drain(admin_pb2.DrainRequest())).in_flight_requests == 0
        await service.admin.Resume(admin_pb2.ResumeRequest())
        assert (await info_of(service)).state == admin_pb2.SERVER_STATE_SERVING
        service.engine.script = say(encode("again"))
        assert await service.generation.GenerateUnary(make_request())


async def refused(service) -> None:
    """All that makes the engine work is refused, with a word about what to do."""
    for call in (
        service.generation.GenerateUnary(make_request()),
        service.generation.Generate(make_request()).read(),
        service.pooling.ScoreContinuations(pooling_pb2.ScoreContinuationsRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        details = details_of(caught.value)
        assert details["ErrorInfo"].reason == "DRAINING" and "RetryInfo" in details


async def test_a_drain_with_a_timeout(checkpoint, model):
    """What is left ends such that a client continues elsewhere; the core hears of it."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        handle = (await soon(service.engine.requests.get())).handle
        await service.engine.output(handle, Output(encode("a")))
        assert text_of([await call.read()]) == "a"
        await service.admin.Drain(admin_pb2.DrainRequest(timeout={"nanos": 1}))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert details_of(caught.value)["ErrorInfo"].reason == "DRAINING"
        assert (await soon(service.engine.aborts.get())).handle == handle


@pytest.mark.parametrize("timeout", [{"seconds": -1}, {"seconds": 10**6}])
async def test_a_drain_timeout_that_makes_no_sense(checkpoint, model, timeout):
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.admin.Drain(admin_pb2.DrainRequest(timeout=timeout))
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "timeout"
        assert service.frontend.state.serves
