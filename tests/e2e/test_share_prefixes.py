"""A prefix that one engine core has computed is copied by another, with the same tokens and
log-probabilities."""

import os
import signal
from collections.abc import Iterator

import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire_client.results import Generation
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

PARAMS = {"timings": True, "max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "logprobs": 2, "seed": 7}
ATTEMPTS = 5
"""A copy is given up where the machine is slow; the request computes then."""


@pytest.fixture(scope="module", params=["simulated", "cpu"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    flags = {"device": request.param, "data_parallel_size": 2, "share_prefixes": True, "http_port": 0}
    if request.param == "simulated":
        flags["profile"] = "cpu"
    with services.start(max_deaths=99, **flags) as service:
        yield service


def prompt(number: int) -> str:
    return f"{number}: " + ", ".join(map(str, range(1, 180)))


def generate(client: Client, number: int, rank: int) -> Generation:
    return client.generate(prompt(number), data_parallel_rank=rank, **PARAMS)


def test_a_prefix_is_copied(service: Service) -> None:
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: len(client.load().ranks) == 2)
        client.reset_cache()
        before = services.pulls(service).get("pulled", 0.0)
        for number in range(ATTEMPTS):
            computed = generate(client, number, 0)
            found = generate(client, number, 1)
            assert found.outputs == computed.outputs
            if services.pulls(service).get("pulled", 0.0) > before:
                break
        else:
            pytest.fail("no prefix was copied")
        assert not computed.usage.cached_prompt_tokens and found.usage.cached_prompt_tokens > 100
        assert found.timings is not None and found.timings.waits.kv_transfer > 0


@pytest.mark.parametrize("service", ["simulated"], indirect=True)
def test_the_holder_is_killed(service: Service) -> None:
    """Before, while or after it is asked: requests at the other core compute, with the same tokens."""
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: len(client.load().ranks) == 2)
        client.reset_cache()
        expected = [generate(client, number, 0) for number in range(10, 13)]
        core = services.core_process(service, "engine", 0)
        streams = []
        with services.all_die([core]):
            for number in range(10, 13):
                streams.append(client.stream(prompt(number), data_parallel_rank=1, **PARAMS))
                if number == 11:
                    os.kill(core, signal.SIGKILL)
            results = [stream.result() for stream in streams]
        assert [result.outputs for result in results] == [each.outputs for each in expected]
