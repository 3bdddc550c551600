"""Prefill and decode apart: requests get their first tokens at one engine core and go on at another one,
which copies their blocks, with the tokens and log-probabilities of one engine core."""

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire.v1 import inspection_pb2 as pb
from pagewire_client.results import Generation
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

PREFILL, DECODE = 0, 1
PROMPT = ", ".join(map(str, range(1, 90)))
REQUESTS: list[dict[str, Any]] = [
    {"seed": 1, "logprobs": 2},
    {"seed": 2, "n": 3},
    {"seed": 3, "prompt_logprobs": 1},
    {"seed": 4, "regex": "[a-z ]{40,60}"},
    {"seed": 5, "max_tokens": 1},
]


def generate(client: Client, **options: Any) -> Generation:
    fields = {"max_tokens": 80, "ignore_eos": "regex" not in options, "temperature": 1.0, **options}
    return client.generate(PROMPT, timings=True, **fields)


@pytest.fixture(scope="module", params=["simulated", "cpu"])
def flags(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"device": request.param} | ({"profile": "cpu"} if request.param == "simulated" else {})


@pytest.fixture(scope="module")
def expected(flags: dict[str, Any]) -> list[Generation]:
    """Of one engine core."""
    with services.start(**flags) as service, Client(service.address) as client:
        client.wait_ready()
        return [generate(client, **options) for options in REQUESTS]


@pytest.fixture(scope="module")
def service(flags: dict[str, Any], expected: list[Generation]) -> Iterator[Service]:
    """Of two, the first of which computes prompts."""
    sizes = {"data_parallel_size": 2, "prefill_engines": 1}
    with services.start(max_deaths=99, http_port=0, **sizes, **flags) as service:
        yield service


def num_handed_over(service: Service) -> float:
    with urllib.request.urlopen(f"http://{service.facts['http']}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^pagewire_frontend_handovers_total(?:\{.*\})? (\S+)$", text, re.M)
    return sum(map(float, found))


def wait_for_both(client: Client) -> None:
    client.wait_ready()
    services.wait_until(lambda: len(client.load().ranks) == 2)
    roles = [engine.role for engine in client.list_engines().engines]
    assert roles == [pb.ENGINE_ROLE_PREFILL, pb.ENGINE_ROLE_DECODE]


def test_requests_go_on_at_the_core_that_decodes(service: Service, expected: list[Generation]) -> None:
    """A copy is given up where the machine is slow: then the core that decodes computes."""
    with Client(service.address) as client:
        wait_for_both(client)
        for _ in range(5):
            client.reset_cache()
            before, pulled = num_handed_over(service), services.pulls(service).get("pulled", 0.0)
            found = [generate(client, **options) for options in REQUESTS]
            for one, other in zip(found, expected, strict=True):
                assert one.outputs == other.outputs and one.prompt_logprobs == other.prompt_logprobs
            assert num_handed_over(service) == before + len(REQUESTS) - 1, "all but the one with one token"
            if services.pulls(service).get("pulled", 0.0) > pulled:
                break
        else:
            pytest.fail("no blocks were copied")
        assert any(each.timings is not None and each.timings.waits.kv_transfer for each in found)


@pytest.mark.parametrize(
    ("rank", "kinds"),
    [(PREFILL, ("engine", "worker")), (DECODE, ("engine",)), (DECODE, ("worker",))],
    ids=["0-engine+worker", "1-engine", "1-worker"],
)
def test_one_of_them_is_killed(
    service: Service, expected: list[Generation], rank: int, kinds: tuple[str, ...]
) -> None:
    """While requests run: the other one goes on with them, whatever it is for."""
    with Client(service.address) as client:
        wait_for_both(client)
        client.reset_cache()
        core = services.core_process(service, "engine", rank)
        victims = [services.core_process(service, kind, rank) for kind in kinds]
        options = {"max_tokens": 80, "ignore_eos": True, "temperature": 1.0}
        streams = [client.stream(PROMPT, **{**options, **REQUESTS[place]}) for place in (0, 1)]
        for stream in streams:
            next(stream)
        with services.all_die([core]):
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            results = [stream.result() for stream in streams]
        assert [result.outputs for result in results] == [each.outputs for each in expected[:2]]
