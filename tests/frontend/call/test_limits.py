"""A frontend takes on so much and no more, and says when to come back."""

from contextlib import ExitStack

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.call.limits import ConcurrencyLimits
from frontend.errors import FrontendFull
from frontend.rpc.error_mapping import RETRY_PUSHBACK
from pagewire.retry_after import UNKNOWN_S
from pagewire.v1 import tokenizer_pb2
from tests.frontend.fakes import END, Output, make_request, run_service
from tests.patience import soon


class Calls:
    """Calls that a test ends."""

    def __init__(self) -> None:
        self._slots: list[ExitStack] = []

    def begin(self, limits: ConcurrencyLimits) -> None:
        slot = ExitStack()
        slot.enter_context(limits.call(ANONYMOUS))
        self._slots.append(slot)

    def end(self) -> None:
        self._slots.pop().close()


def test_calls_are_counted_until_they_are_over() -> None:
    limits, calls = ConcurrencyLimits(2, 0, clock=lambda: 0.0), Calls()
    calls.begin(limits)
    calls.begin(limits)
    with pytest.raises(FrontendFull) as refusal:
        calls.begin(limits)
    assert refusal.value.retry_after == UNKNOWN_S
    calls.end()
    calls.begin(limits)
    assert (limits.num_calls, limits.refused) == (2, {"calls": 1})


def test_bytes_are_counted_while_they_are_read() -> None:
    """One that is larger than the bound is read when no other is."""
    limits = ConcurrencyLimits(0, 100)
    with limits.reading(1000, ANONYMOUS), pytest.raises(FrontendFull), limits.reading(1, ANONYMOUS):
        pass
    with ExitStack() as held:
        held.enter_context(limits.reading(60, ANONYMOUS))
        held.enter_context(limits.reading(40, ANONYMOUS))
        with pytest.raises(FrontendFull):
            held.enter_context(limits.reading(1, ANONYMOUS))
    assert (limits.num_bytes, limits.refused) == (0, {"bytes": 2})


def test_a_tenant_has_a_share_of_the_bytes() -> None:
    """One that is larger than the share is read when no other of the tenant is."""
    limits, alice, bob = ConcurrencyLimits(0, 100), Caller("alice"), Caller("bob")
    with limits.reading(70, alice), limits.reading(10, bob):
        with pytest.raises(FrontendFull):
            limits.reading(1, alice).__enter__()
        with limits.reading(20, bob):
            pass
    with limits.reading(30, alice), limits.reading(20, alice), limits.reading(50, bob):
        assert limits.num_bytes == 100
    assert not limits.num_bytes and not limits._bytes._held_by


def test_a_failure_gives_back_what_it_held() -> None:
    limits = ConcurrencyLimits(0, 100)
    with pytest.raises(ZeroDivisionError), limits.reading(60, ANONYMOUS):
        raise ZeroDivisionError
    assert limits.num_bytes == 0


def test_when_to_come_back_is_when_places_become_free() -> None:
    now = 0.0
    limits, calls = ConcurrencyLimits(1, 0, clock=lambda: now), Calls()
    for _ in range(10):  # one call per second
        calls.begin(limits)
        now += 1
        calls.end()
    calls.begin(limits)
    hints = []
    for _ in range(3):
        with pytest.raises(FrontendFull) as refusal:
            calls.begin(limits)
        hints.append(refusal.value.retry_after)
    assert hints == pytest.approx([1, 2, 3], rel=0.15)


async def test_a_client_is_refused_before_anything_is_done(checkpoint, model):
    """Trailers only: gRPC's retry policies may act. Calls that cost nothing are answered."""
    async with run_service(checkpoint, model=model, max_concurrent_requests=1) as service:
        call = service.generation.Generate(make_request())
        handle = (await soon(service.engine.requests.get())).handle
        refused = service.generation.GenerateUnary(make_request())
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await refused
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        details = {each.TypeName(): each for each in rpc_status.from_call(failure.value).details}
        info = error_details_pb2.ErrorInfo()
        details["google.rpc.ErrorInfo"].Unpack(info)
        assert info.reason == "FRONTEND_FULL" and "google.rpc.RetryInfo" in details
        assert int(dict(failure.value.trailing_metadata())[RETRY_PUSHBACK]) == 1000 * UNKNOWN_S
        with pytest.raises(grpc.aio.AioRpcError):
            await service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest())
        await service.engine.output(handle, Output([END], 1, END))
        async for _ in call:
            pass
        again = service.generation.Generate(make_request())
        await soon(service.engine.requests.get())
        again.cancel()


async def test_prompts_that_are_read_have_a_bound(checkpoint, model):
    """While one is read there is no room for another; what is being generated does not count."""
    async with run_service(checkpoint, model=model, max_tokenizing_bytes=1) as service:
        first = service.generation.Generate(make_request())
        await soon(service.engine.requests.get())
        second = service.generation.Generate(make_request())
        await soon(service.engine.requests.get())
        first.cancel(), second.cancel()
