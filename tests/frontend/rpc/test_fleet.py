"""Drain and Resume for one frontend, another one and all; over real gRPC, and through a fake engine."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from frontend.call.serving_state import DRAINING, SERVING
from frontend.engine import core_list
from frontend.rpc.fleet import MAX_NAME_BYTES, address_of
from frontend.server import Frontend
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import admin_pb2
from tests.frontend.fakes import Service, details_of, make_request, run_service
from tests.patience import soon


@contextlib.asynccontextmanager
async def second_frontend(service: Service) -> AsyncIterator[Frontend]:
    """Another frontend of the same engine."""
    first = service.frontend
    config = replace(first._config, process_name="frontend-2")
    frontend = Frontend(config, first.parts.generator.model)
    frontend.open()
    await frontend.start()
    await frontend.wait_until_serving()
    try:
        yield frontend
    finally:
        await frontend.stop(0)


@pytest.fixture
async def service(checkpoint, model) -> AsyncIterator[Service]:
    async with run_service(checkpoint, model=model, process_name="frontend-1") as service:
        yield service


@pytest.fixture
async def other(service: Service) -> AsyncIterator[Frontend]:
    async with second_frontend(service) as frontend:
        yield frontend


def shown(response) -> list[tuple[str, int, int, str]]:
    """Of each frontend name, state, requests in flight and error; sorted by name."""
    found = [
        (each.name, each.state, each.in_flight_requests, each.error.partition(":")[0])
        for each in response.frontends
    ]
    return sorted(found)


async def test_all_frontends_drain_and_resume(service, other):
    call = service.generation.Generate(make_request())
    await soon(service.engine.requests.get())
    answer = await service.admin.Drain(admin_pb2.DrainRequest(all_frontends=True))
    assert shown(answer) == [("frontend-1", DRAINING, 1, ""), ("frontend-2", DRAINING, 0, "")]
    assert answer.in_flight_requests == 1 and service.frontend.state.state == other.state.state == DRAINING
    addresses = {each.address for each in answer.frontends}
    assert f"127.0.0.1:{service.port}" in addresses and len(addresses) == 2
    resumed = await service.admin.Resume(admin_pb2.ResumeRequest(all_frontends=True))
    assert shown(resumed) == [("frontend-1", SERVING, 1, ""), ("frontend-2", SERVING, 0, "")]
    call.cancel()


@pytest.mark.parametrize("by", ["name", "address", "id", "digits"])
async def test_one_frontend_is_named(service, other, by):
    hello = other.engine.hello
    names = {
        "name": hello.name,
        "address": hello.address,
        "id": hello.frontend_id,
        "digits": hello.frontend_id[:8],
    }
    answer = await service.admin.Drain(admin_pb2.DrainRequest(frontend=names[by], timeout={"seconds": 60}))
    assert shown(answer) == [("frontend-2", DRAINING, 0, "")]
    assert service.frontend.state.state == SERVING and other.state.state == DRAINING
    await service.admin.Resume(admin_pb2.ResumeRequest(frontend=names[by]))
    assert other.state.state == SERVING


async def test_without_a_name_it_is_the_one_that_gets_the_call(service, other):
    answer = await service.admin.Drain(admin_pb2.DrainRequest())
    assert shown(answer) == [("frontend-1", DRAINING, 0, "")] and other.state.state == SERVING


def with_epoch(hello: engine_pb2.Hello) -> engine_pb2.Hello:
    """As it is said to a core that is known."""
    said = engine_pb2.Hello(known_epoch=1)
    said.MergeFrom(hello)
    return said


async def test_a_name_that_is_none_or_several(service, other):
    other.engine.hello.name = "frontend-1"
    while await soon(service.engine.hellos.get()) != with_epoch(other.engine.hello):
        pass
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.admin.Drain(admin_pb2.DrainRequest(frontend="frontend-9"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert details_of(caught.value)["ErrorInfo"].reason == "FRONTEND_NOT_FOUND"
    assert service.frontend.engine.identity.hex()[:8] in str(caught.value.details())
    for order in (
        admin_pb2.DrainRequest(frontend="a" * (MAX_NAME_BYTES + 1)),
        admin_pb2.DrainRequest(frontend="frontend-1", all_frontends=True),
        admin_pb2.DrainRequest(all_frontends=True, timeout={"seconds": -1}),
        admin_pb2.DrainRequest(frontend="frontend-1"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.admin.Drain(order)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert service.frontend.state.state == other.state.state == SERVING


async def test_a_frontend_that_does_not_answer_is_said_to(service, other, monkeypatch):
    """The others drain all the same."""
    other.engine.obey = None
    questions = service.frontend.engine.questions
    command = questions.command

    async def wait_briefly_for_the_other(core, order):
        is_other = order.frontend == other.engine.identity
        monkeypatch.setattr(core_list, "COMMAND_S", 0.05 if is_other else 60.0)
        return await command(core, order)

    questions.command = wait_briefly_for_the_other
    answer = await service.admin.Drain(admin_pb2.DrainRequest(all_frontends=True))
    assert [(name, error) for name, _, _, error in shown(answer)] == [
        ("frontend-1", ""),
        ("frontend-2", "it does not answer"),
    ]


async def test_a_frontend_that_stops_says_so(service, other):
    other._drain.close()
    answer = await service.admin.Drain(admin_pb2.DrainRequest(frontend="frontend-2"))
    assert [error for _, _, _, error in shown(answer)] == ["this server is shutting down"]


async def test_without_an_engine_other_frontends_are_not_found(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.admin.Drain(admin_pb2.DrainRequest(all_frontends=True))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert service.frontend.state.state != DRAINING
        await service.admin.Drain(admin_pb2.DrainRequest())
        assert service.frontend.state.state == DRAINING


def test_addresses():
    assert address_of("127.0.0.1", 5) == "127.0.0.1:5" and address_of("::1", 5) == "[::1]:5"
    assert not address_of("0.0.0.0", 5).startswith("0.0.0.0")
