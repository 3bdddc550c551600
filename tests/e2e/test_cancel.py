"""However a call ends, and in whatever state its request is: the engine is empty again.

Requests at once are in four states, and the same thing happens to all of them: two decode, one is in
its prompt, one has generated everything for a client that does not read, one waits in the queue. Here it is
the whole way, from the socket of a client to the blocks; tests/engine_core/test_cancel.py counts the steps.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc
import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from pagewire_client.errors import Unavailable
from tests.e2e import services
from tests.e2e.proxy import Proxy
from tests.e2e.test_simulated import without_weights
from tests.stalled import StalledClient

ROWS = 3
STALLED_TOKENS = 4
GONE = {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
LATE = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Requests that cannot meet their deadline are refused at once."""
SOON = timedelta(seconds=4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with steps of 150 ms and 8 tokens: no request ends by itself during a test."""
    folder = without_weights(tmp_path_factory.mktemp("cancel"))
    with services.start(
        folder,
        device="simulated",
        max_num_seqs=ROWS,
        max_num_batched_tokens=8,
        worker_fault=("slow-factor=2000",),
        keepalive_time=1.0,
        keepalive_timeout=3.0,
        no_prefix_cache=True,
    ) as service:
        yield service


@dataclass
class Calls:
    """The four."""

    proxy: Proxy
    stalled: StalledClient
    streams: list[Any]

    def statuses(self) -> list[grpc.StatusCode]:
        """Of those whose clients read, when they have ended."""
        found = []
        for stream in self.streams:
            with contextlib.suppress(grpc.RpcError):
                for _ in stream:
                    pass
            found.append(stream.code())
        return found


def request(request_id: str, prompt: int, max_tokens: int, **limits: Any) -> generation_pb2.GenerateRequest:
    made = generation_pb2.GenerateRequest(request_id=request_id)
    made.prompt.token_ids.ids.extend(3 + place % 900 for place in range(prompt))
    made.stopping.max_tokens = max_tokens
    made.stopping.ignore_eos = True
    for name, value in limits.items():
        getattr(made.stopping, name).FromTimedelta(value)
    return made


def is_idle(client: Client) -> bool:
    """Returns True if there is an engine, and it is empty."""
    try:
        return services.is_idle(client)
    except Unavailable:
        return False


@contextlib.contextmanager
def four(service: Service, client: Client, timeout: float | None = None, **limits: Any) -> Iterator[Calls]:
    """Requests in four states, through a proxy. With a timeout or limit, the states are not waited for."""
    reach = timeout is None and not limits
    client.wait_ready()
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(service.address))
        stalled = stack.enter_context(StalledClient(proxy.address))
        channel = stack.enter_context(grpc.insecure_channel(proxy.address))
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        stalled.call(request("stalled", 4, STALLED_TOKENS))
        streams = [
            stub.Generate(request("decodes", 4, 900, **limits), timeout=timeout),
            stub.Generate(request("decodes too", 4, 900, **limits), timeout=timeout),
        ]
        if reach:
            for stream in streams:
                next(stream)
            services.wait_until(lambda: services.rank_load(client).running_requests == 2)
        streams.append(stub.Generate(request("prompt", 900, 50, **limits), timeout=timeout))
        if reach:
            services.wait_until(lambda: services.rank_load(client).running_requests == ROWS)
        streams.append(stub.Generate(request("waits", 4, 900, **limits), timeout=timeout))
        if reach:
            services.wait_until(lambda: services.rank_load(client).waiting_requests == 1)
        yield Calls(proxy, stalled, streams)
        services.wait_until(lambda: is_idle(client))


def cancel(calls: Calls, service: Service, client: Client) -> None:
    for stream in calls.streams:
        stream.cancel()
    calls.stalled.close()


def reset(calls: Calls, service: Service, client: Client) -> None:
    calls.proxy.reset()


def black_hole(calls: Calls, service: Service, client: Client) -> None:
    """Silences the connection; the server's ping is not answered."""
    calls.proxy.black_hole()
    services.wait_until(lambda: is_idle(client))
    calls.proxy.reset()


def abort(calls: Calls, service: Service, client: Client) -> None:
    ids = ["decodes", "decodes too", "prompt", "waits"]
    assert {*client.abort(ids)} == {*ids}


def kill_frontend(calls: Calls, service: Service, client: Client) -> None:
    os.kill(services.processes(service.pid)["frontend"][0], signal.SIGKILL)


def nothing(calls: Calls, service: Service, client: Client) -> None:
    """Time passes."""


EVENTS: dict[str, tuple[Callable[..., None], dict[str, Any], set[grpc.StatusCode]]] = {
    "cancel": (cancel, {}, {grpc.StatusCode.CANCELLED}),
    "reset": (reset, {}, GONE),
    "black hole": (black_hole, {}, GONE),
    "Abort": (abort, {}, {grpc.StatusCode.OK}),
    "deadline": (nothing, {"timeout": SOON.total_seconds()}, LATE),
    "time limit": (nothing, {"time_limit": SOON}, {grpc.StatusCode.OK}),
    "frontend killed": (kill_frontend, {}, GONE),
}


@pytest.mark.parametrize("event", EVENTS)
def test_the_engine_is_empty_again(service: Service, event: str) -> None:
    happen, options, statuses = EVENTS[event]
    with Client(service.address) as client, four(service, client, **options) as calls:
        happen(calls, service, client)
        assert {*calls.statuses()} <= statuses


def test_a_core_that_was_down_is_not_sent_cancelled_requests(service: Service) -> None:
    """Requests wait in the journal; those cancelled in between are not sent to the next core."""
    with Client(service.address) as client, four(service, client) as calls:
        os.kill(services.processes(service.pid)["engine"][0], signal.SIGKILL)
        cancel(calls, service, client)
        client.wait_ready()
        assert {*calls.statuses()} == {grpc.StatusCode.CANCELLED}
