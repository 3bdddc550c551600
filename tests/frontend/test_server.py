"""The server as a whole: reflection, ports, shutting down."""

import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frontend.model_info import load_model
from frontend.server import SERVICES, Frontend
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from tests.frontend.fakes import (
    Output,
    encode,
    engine_address,
    finishes_of,
    make_request,
    run_service,
    text_of,
)


async def ask(service, request: reflection_pb2.ServerReflectionRequest):
    stub = reflection_pb2_grpc.ServerReflectionStub(service.channel)
    async for response in stub.ServerReflectionInfo(iter([request])):
        return response


async def test_reflection_lists_everything(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        response = await ask(service, reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {entry.name for entry in response.list_services_response.service}
        others = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert listed == {*SERVICES, *others}
        for name in listed:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            assert (await ask(service, request)).file_descriptor_response.file_descriptor_proto


async def test_reflection_can_be_switched_off(checkpoint, model):
    async with run_service(checkpoint, model=model, reflection=False) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(service, reflection_pb2.ServerReflectionRequest(list_services=""))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_that_is_taken(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        config = FrontendConfig(model=str(checkpoint), port=service.port)
        with pytest.raises(StartupError) as caught:
            await Frontend(config, model).start()
        assert str(service.port) in caught.value.what and "--port" in caught.value.todo


async def test_frontends_may_share_a_port(checkpoint):
    with engine_address() as address:
        first, second = (
            Frontend(config, load_model(config))
            for config in [FrontendConfig(model=str(checkpoint), port=0, engine=(address,), reuse_port=True)]
            for _ in range(2)
        )
        port = await first.start()
        second._config = FrontendConfig(model=str(checkpoint), port=port, engine=(address,), reuse_port=True)
        assert await second.start() == port
        await asyncio.gather(first.stop(0), second.stop(0))


async def test_streams_end_within_the_grace(checkpoint, model):
    """Shutting down: running streams go on, new ones are refused, and nothing is lost."""
    async with run_service(checkpoint, model=model) as service:
        messages = []

        async def read() -> None:
            messages.extend([message async for message in service.generation.Generate(make_request())])

        reading = asyncio.ensure_future(read())
        handle = (await asyncio.wait_for(service.engine.requests.get(), 30)).handle
        stopping = asyncio.ensure_future(service.frontend.stop(30))
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generation.GenerateUnary(make_request())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await service.engine.output(handle, Output(encode("bye"), 3))
        await asyncio.gather(reading, stopping)
        assert text_of(messages) == "bye" and len(finishes_of(messages)) == 1


async def test_streams_that_outlast_the_grace_are_aborted(checkpoint, model):
    """And the core hears of it, before the socket closes."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        handle = (await asyncio.wait_for(service.engine.requests.get(), 30)).handle
        await service.frontend.stop(0.01)
        assert (await asyncio.wait_for(service.engine.aborts.get(), 30)).handle == handle
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
