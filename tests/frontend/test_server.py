"""The server as a whole: reflection, ports, shutting down."""

import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from frontend.grpc_services import SERVICES
from frontend.model.info import load_model
from frontend.server import Frontend
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.v1 import admin_pb2, generation_pb2_grpc
from tests.frontend.fakes import (
    Output,
    details_of,
    encode,
    engine_address,
    finishes_of,
    make_request,
    new_channel,
    run_service,
    say,
    text_of,
)
from tests.patience import soon


async def ask(service, request: reflection_pb2.ServerReflectionRequest, version: str = "v1"):
    call = service.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    async for response in call(iter([request])):
        return response


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_everything(checkpoint, model, version):
    async with run_service(checkpoint, model=model) as service:
        response = await ask(service, reflection_pb2.ServerReflectionRequest(list_services=""), version)
        listed = {entry.name for entry in response.list_services_response.service}
        reflections = {f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")}
        assert listed == {*SERVICES, "grpc.health.v1.Health", *reflections}
        for name in listed:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            files = (await ask(service, request, version)).file_descriptor_response.file_descriptor_proto
            package = name.rpartition(".")[0]
            packages = {descriptor_pb2.FileDescriptorProto.FromString(file).package for file in files}
            assert package in packages


async def test_reflection_can_be_switched_off(checkpoint, model):
    """The call is a unary one: of a stream gRPC may report that the request could not be sent."""
    async with run_service(checkpoint, model=model, reflection=False) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            await service.channel.unary_unary(method)(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_that_is_taken(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        config = FrontendConfig(model=str(checkpoint), port=service.port)
        with pytest.raises(StartupError) as caught:
            Frontend(config, model).open()
        assert str(service.port) in caught.value.what and "--port" in caught.value.todo


async def test_frontends_may_share_a_port(checkpoint):
    with engine_address() as address:
        first, second = (
            Frontend(config, load_model(config))
            for config in [FrontendConfig(model=str(checkpoint), port=0, engine=(address,), reuse_port=True)]
            for _ in range(2)
        )
        port = first.open()
        second._config = FrontendConfig(model=str(checkpoint), port=port, engine=(address,), reuse_port=True)
        assert second.open() == port
        await asyncio.gather(first.start(), second.start())
        await asyncio.gather(first.stop(0), second.stop(0))


async def test_streams_end_within_the_grace(checkpoint, model):
    """Shutting down: running streams go on, new ones are refused, and nothing is lost."""
    async with run_service(checkpoint, model=model) as service:
        messages = []

        async def read() -> None:
            messages.extend([message async for message in service.generation.Generate(make_request())])

        reading = asyncio.ensure_future(read())
        handle = (await soon(service.engine.requests.get())).handle
        stopping = asyncio.ensure_future(service.frontend.stop(30))
        while not service.frontend.state.closes:
            await service.frontend.state.changed()
        async with new_channel(service.port) as late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generation_pb2_grpc.GenerationServiceStub(late).GenerateUnary(make_request())
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await service.engine.output(handle, Output(encode("bye"), 3))
        await asyncio.gather(reading, stopping)
        assert text_of(messages) == "bye" and len(finishes_of(messages)) == 1


async def test_streams_that_outlast_the_grace_are_aborted(checkpoint, model):
    """And the core hears of it, before the socket closes."""
    async with run_service(checkpoint, model=model) as service:
        call = service.generation.Generate(make_request())
        handle = (await soon(service.engine.requests.get())).handle
        await service.frontend.stop(0.01)
        assert (await soon(service.engine.aborts.get())).handle == handle
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert details_of(caught.value)["ErrorInfo"].reason == "DRAINING"  # a client continues elsewhere


async def test_before_the_first_refusal_health_says_no(checkpoint, model):
    """In the drain delay a new request is served, and so is one on a connection that is there when the
    listening socket closes."""
    async with run_service(checkpoint, model=model, script=say(encode("late"))) as service:
        await service.generation.GenerateUnary(make_request())
        stopping = asyncio.create_task(service.frontend.stop(grace=30, delay=30))
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        assert await service.generation.GenerateUnary(make_request())
        async with new_channel(service.port) as late:
            stub = generation_pb2_grpc.GenerationServiceStub(late)
            assert await stub.GenerateUnary(make_request())
        service.frontend.hurry()
        await stopping


async def test_watchers_do_not_keep_it_from_ending(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        watch = health_pb2_grpc.HealthStub(service.channel).Watch(health_pb2.HealthCheckRequest())
        loads = service.admin.WatchLoad(admin_pb2.WatchLoadRequest(min_interval={"seconds": 3600}))
        await watch.read()
        await loads.read()
        await soon(service.frontend.stop(grace=3600))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() == grpc.aio.EOF
        assert await loads.code() == grpc.StatusCode.UNAVAILABLE
