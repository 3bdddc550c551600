"""A client that sends halves, resets or does not read takes nothing that others need, and not for long."""

import asyncio
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.auth.token_list import entry_line
from frontend.auth.tokens import digest_of
from frontend.concurrency_limits import ConcurrencyLimits
from frontend.errors import FrontendFull
from pagewire.v1 import model_pb2
from tests.frontend.fakes import make_request, run_service, say
from tests.hostile.test_frames import Http2, framed
from tests.stalled import StalledClient

ALICE, BOB = Caller("alice"), Caller("bob")
REQUEST = make_request(output={"token_ids": True})


async def until(holds: Callable[[], bool]) -> None:
    """Fails when it does not become true."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not become true")


def test_a_tenant_has_a_share_of_the_slots():
    """One tenant's calls once locked out all others."""
    limits = ConcurrencyLimits(4, 0)
    for slot in (limits.call, limits.stream):
        with slot(ALICE), slot(ALICE):
            with pytest.raises(FrontendFull), slot(ALICE):
                pass
            with slot(BOB), slot(BOB), pytest.raises(FrontendFull), slot(ANONYMOUS):
                pass
        with slot(ALICE), slot(None), slot(None), pytest.raises(FrontendFull), slot(None):
            pass
    with limits.call(ANONYMOUS), limits.call(ANONYMOUS), limits.call(ANONYMOUS), limits.call(ANONYMOUS):
        assert limits.num_calls == 4
    assert limits.num_calls == 0 and limits.refused == {"calls": 2 + 1, "streams": 2 + 1}


async def test_a_unary_response_that_is_not_read_is_given_up(checkpoint, model):
    async with run_service(checkpoint, say([65]), model=model, write_timeout=0.2) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            stream = client.call(REQUEST, "GenerateUnary")
            await until(lambda: len(service.frontend.write_timeouts) == 1)
            await until(lambda: len(service.frontend.write_timeouts) == 0)
            _, trailers = await asyncio.to_thread(client.read_on, stream)
            assert trailers["grpc-status"] == str(grpc.StatusCode.ABORTED.value[0])
            await until(lambda: service.frontend.limits.num_calls == 0)


async def test_an_archive_that_is_not_read_holds_a_slot_and_is_given_up(checkpoint, model):
    async with run_service(checkpoint, model=model, write_timeout=0.2) as service:
        limits = service.frontend.limits
        with Http2(f"127.0.0.1:{service.port}") as raw:
            raw.state.update_settings({4: 0})  # INITIAL_WINDOW_SIZE
            raw.call(framed(b""), _path="/pagewire.v1.TokenizerService/GetTokenizer")
            await until(lambda: len(service.frontend.write_timeouts) == 1)
            assert limits.num_calls == 1
            await until(lambda: len(service.frontend.write_timeouts) == 0)
        await until(lambda: limits.num_calls == 0)


async def test_half_a_message_holds_a_slot_until_its_time_is_up(checkpoint, model, monkeypatch):
    monkeypatch.setattr("frontend.server.RECEIVE_TIMEOUT_S", 0.5)
    async with run_service(checkpoint, model=model) as service:
        frontend = service.frontend
        with Http2(f"127.0.0.1:{service.port}") as client:
            for _ in range(3):
                client.call(framed(bytes(1000), length=1 << 20), end=False)
            await until(lambda: frontend.limits.num_calls == 3)
            await until(lambda: frontend.limits.num_calls == 0)
            assert frontend.counters.abandoned == 3


async def test_resets_are_counted_and_leave_nothing(checkpoint, model):
    async with run_service(checkpoint, model=model) as service:
        frontend = service.frontend
        with Http2(f"127.0.0.1:{service.port}") as client:
            for _ in range(200):
                client.state.reset_stream(client.call(b"", end=False))
                client.flush()
            await until(lambda: frontend.counters.abandoned > 0)
        model_stub = service.models  # on another connection: an answer proves that the frontend serves on
        assert (await model_stub.ListModels(model_pb2.ListModelsRequest())).models
        await until(lambda: frontend.limits.num_calls == 0 and not frontend.limits._calls._held_by)


async def test_watchers_of_health_have_a_bound(checkpoint, model, tmp_path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n" + entry_line(digest_of("alice's"), "alice", {}))
    settings = {"auth_file": str(tokens), "max_concurrent_requests": 4}
    async with run_service(checkpoint, model=model, **settings) as service:
        stub = health_pb2_grpc.HealthStub(service.channel)
        watching = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for call in watching:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        third = stub.Watch(health_pb2.HealthCheckRequest())
        assert await third.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status
        for call in watching:
            call.cancel()
