"""Many requests over one stream of a real service: each token as its own stream would have it, also when
frontends are killed in the middle."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagewire import AsyncClient, Client
from pagewire.local_service import Service
from pagewire_client.results import Output
from pagewire_client.transport.exchange import MultiplexedRequest
from tests.e2e import services

LONG = {"max_tokens": 300, "ignore_eos": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("1, 2, 3,", {**LONG, "seed": 1}),
    ("The first of many", {**LONG, "seed": 2, "temperature": 0.9}),
    ("Two of one", {**LONG, "seed": 3, "n": 2}),
    ("With scores", {**LONG, "seed": 4, "logprobs": 2}),
    ("Short", {"max_tokens": 5, "ignore_eos": True, "seed": 5}),
    ("Stops", {**LONG, "seed": 6, "stop": "e", "min_tokens": 20}),
    *((f"More {place}", {**LONG, "seed": 10 + place}) for place in range(6)),
]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Steps of 2 ms: requests are still running when a client does something in the middle of them."""
    slowly = {"worker_fault": ("slow-factor=4",)}
    with services.start(device="simulated", profile="cpu", frontends=2, max_deaths=99, **slowly) as service:
        yield service


@pytest.fixture(scope="module")
def twins(service: Service) -> list[list[Output]]:
    """What each is alone."""
    with Client(service.address) as client:
        return [client.stream(prompt, **options).result().outputs for prompt, options in CASES]


def run(address: str, in_the_middle: Callable[[], None]) -> list[MultiplexedRequest]:
    """All at once. in_the_middle: at 400 tokens."""
    with Client(address) as client, client.multiplex() as many:
        requests = [many.send(prompt, **options) for prompt, options in CASES]
        received = 0
        for _, delta in many:
            before, received = received, received + len(delta.token_ids)
            if before < 400 <= received:
                in_the_middle()
        return requests


async def run_async(address: str, in_the_middle: Callable[[], None]) -> list[MultiplexedRequest]:
    async with AsyncClient(address) as client, client.multiplex() as many:
        requests = [many.send(prompt, **options) for prompt, options in CASES]
        received = 0
        async for _, delta in many:
            before, received = received, received + len(delta.token_ids)
            if before < 400 <= received:
                in_the_middle()
        return requests


def kill_frontends(service: Service) -> None:
    for pid in services.processes(service.pid)["frontend"]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_each_is_what_it_is_alone(
    service: Service, twins: list[list[Output]], asynchronous: bool, kill: bool
):
    killed: list[bool] = []

    def in_the_middle() -> None:
        killed.append(True)
        if kill:
            kill_frontends(service)

    if asynchronous:
        requests = asyncio.run(run_async(service.address, in_the_middle))
    else:
        requests = run(service.address, in_the_middle)
    assert killed and [request.error for request in requests] == [None] * len(CASES)
    for request, twin in zip(requests, twins, strict=True):
        assert request.generation.outputs == twin
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: services.is_idle(client))


def test_the_engine_dies(service: Service, twins: list[list[Output]]):
    """The frontend sends all of them again; the stream stays."""

    def kill() -> None:
        for pid in services.processes(service.pid)["engine"]:
            os.kill(pid, signal.SIGKILL)

    requests = run(service.address, kill)
    assert [request.generation.outputs for request in requests] == twins


@pytest.mark.parametrize("end_after", [None, 0.0], ids=["patient", "at once"])
def test_a_frontend_is_drained(
    service: Service, twins: list[list[Output]], frontends: list[services.Frontend], end_after: float | None
):
    """What it has ends there, or goes on at the other one; what is new goes to the other one."""
    addresses = [frontend.address for frontend in frontends]

    def has_some() -> bool:
        """Whether it had some of the requests when it was told: on a busy machine they may be over."""
        with Client(addresses) as client, client.multiplex() as many, Client(addresses[0]) as operator:
            operator.resume()
            requests = [many.send(prompt, **options) for prompt, options in CASES]
            in_flight = 0
            for place, _ in enumerate(many):
                if place == 0:
                    in_flight = sum(one.in_flight for one in operator.drain(end_after))
                    requests += [many.send(prompt, **options) for prompt, options in CASES]
        assert [request.error for request in requests] == [None] * len(requests)
        assert [request.generation.outputs for request in requests] == 2 * twins
        return in_flight > 0

    services.wait_until(has_some)


@pytest.fixture
def frontends(service: Service) -> Iterator[list[services.Frontend]]:
    started = [services.Frontend(services.engine_addresses(service)[0]) for _ in range(2)]
    yield started
    for each in started:
        each.close()


def test_abort(service: Service):
    """All in time: on a busy machine some may be over before."""
    with Client(service.address) as client:

        def all_are_aborted() -> bool:
            with client.multiplex() as many:
                requests = [
                    many.send(prompt, **{**options, "max_tokens": 900}) for prompt, options in CASES[6:]
                ]
                for request, _ in many:
                    if not request.done:
                        many.abort(request)
            return {request.generation.finish_reason for request in requests} == {"aborted"}

        services.wait_until(all_are_aborted)
        services.wait_until(lambda: services.is_idle(client))
