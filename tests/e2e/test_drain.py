"""An engine core is asked to end while streams run: they go on at another one, which copies their blocks,
with the tokens and log-probabilities of an undisturbed run."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

import pytest

from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

PROMPT = ", ".join(map(str, range(1, 90)))
PARAMS = {"max_tokens": 160, "ignore_eos": True, "temperature": 1.0, "logprobs": 2}


@pytest.fixture(scope="module", params=["simulated", "cpu", "nixl"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    device = "simulated" if request.param == "simulated" else "cpu"
    flags = {"device": device, "data_parallel_size": 2, "drain_timeout": 60.0, "http_port": 0}
    if request.param == "nixl":
        if not any(map(find_spec, ("nixl", "nixl_cu12", "nixl_cu13"))):
            pytest.skip("the extra nixl, of 235 MB, is not installed")
        flags["kv_transfer"] = "nixl"
    if device == "simulated":
        flags["profile"] = "cpu"
    with services.start(max_deaths=99, **flags) as service:
        yield service


DRAIN = ("engine", 0, signal.SIGTERM)
DISASTERS = {
    "drained": [DRAIN],
    "killed": [("engine", 0, signal.SIGKILL)],
    "drained and killed": [DRAIN, ("engine", 0, signal.SIGKILL)],
    "drained without its worker": [DRAIN, ("worker", 0, signal.SIGKILL)],
    "drained to a core that is killed": [DRAIN, ("engine", 1, signal.SIGKILL)],
}


@pytest.mark.parametrize("service", ["cpu", "nixl"], indirect=True)
def test_blocks_of_a_model_are_copied(service: Service) -> None:
    drain_the_first_core(service)


@pytest.mark.parametrize("disaster", DISASTERS)
@pytest.mark.parametrize("service", ["simulated"], indirect=True)
def test_streams_of_a_core_that_ends_go_on(service: Service, disaster: str) -> None:
    """Tokens are the same in any case. Blocks are copied only from a core that lives on; where the machine is
    slow, not each time."""
    if disaster == "drained":
        drain_the_first_core(service)
    else:
        is_copied = end_the_first_core(service, disaster)
        assert disaster != "killed" or not is_copied


def drain_the_first_core(service: Service) -> None:
    """Until blocks have been copied: where the machine is slow, some attempts copy none."""
    assert any(end_the_first_core(service, "drained") for _ in range(5))


def end_the_first_core(service: Service, disaster: str) -> bool:
    """Does so while streams run there. Returns whether blocks were copied."""
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: len(client.load().ranks) == 2)
        client.reset_cache()
        before = services.pulls(service)
        core = services.core_process(service, "engine", 0)
        victims = [
            (services.core_process(service, kind, rank), number) for kind, rank, number in DISASTERS[disaster]
        ]
        options = {**PARAMS, "data_parallel_rank": 0}
        expected = [client.generate(PROMPT, seed=seed, **options) for seed in range(3)]
        streams = [client.stream(PROMPT, seed=seed, **options) for seed in range(3)]
        for stream in streams:
            next(stream)
        with services.all_die([core]):
            for pid, number in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            results = [stream.result() for stream in streams]
        assert [result.outputs for result in results] == [each.outputs for each in expected]
        return services.pulls(service).get("pulled", 0.0) > before.get("pulled", 0.0)
