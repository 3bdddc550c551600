"""A standby of the engine core, its worker, or the frontend takes over in the middle of streams."""

import asyncio
import contextlib
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple
from unittest import mock

import pytest

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.transport import recovery
from tests.e2e import services
from tests.e2e.test_hang import FLAGS, SLOWLY

PARAMS = [
    SamplingParams(max_tokens=250, ignore_eos=True, seed=seed, temperature=seed / 2) for seed in range(4)
]

KINDS, BLOCK_SIZE = ("queries", "hits"), 16


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    flags = {"dtype": "float32", "openai_port": 0, "resume_timeout": 2 * services.PATIENCE_S}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, services.start(no_standby=False, **flags) as service:
        yield service


@pytest.fixture(scope="module")
def simulated() -> Iterator[Service]:
    """Whose processes import no torch."""
    flags = {**FLAGS, **SLOWLY, "resume_timeout": 2 * services.PATIENCE_S}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, services.start(no_standby=False, openai_port=0, **flags) as service:
        yield service


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_a_standby_continues_streams_exactly(service: Service, victim: str) -> None:
    """On the real model: the process that goes on is forked by the one that waited, which stays, and no token
    changes. A worker lives on when its core is killed, and a core does not when its worker is."""
    wait_until_ready(service)
    expected = asyncio.run(stream_all(service.address))

    def is_asked_to_continue() -> bool:
        """Whether the streams went on at the new core: on a busy machine the old one may have ended them."""
        before = processes(service)
        struck = before[victim].serving
        assert asyncio.run(stream_all(service.address, lambda: os.kill(struck, signal.SIGKILL))) == expected
        wait_until_replaced(service, [before["engine"].serving, struck])
        after = processes(service)
        assert (after["worker"].serving == before["worker"].serving) == (victim == "engine")
        assert {name: each.standbys for name, each in after.items()} == {
            name: each.standbys for name, each in before.items()
        }
        asked, found = (counter(service, f"pagewire_core_prefix_cache_{name}_total") for name in KINDS)
        if asked and victim == "engine":
            assert 0 < asked - found <= len(PARAMS) * 2 * BLOCK_SIZE, "full blocks are not computed again"
            assert found >= len(PARAMS) * BLOCK_SIZE
        return asked > 0

    services.wait_until(is_asked_to_continue)


def test_a_standby_of_the_only_frontend_continues_streams(simulated: Service) -> None:
    """The process that goes on is forked by the one that waited, at the same ports, and clients continue by
    themselves."""
    service = simulated
    wait_until_ready(service)
    expected = asyncio.run(stream_all(service.address))
    before = processes(service)["frontend"]
    streams = stream_all(service.address, lambda: os.kill(before.serving, signal.SIGKILL))
    assert asyncio.run(streams) == expected
    wait_until_replaced(service, [before.serving])
    assert processes(service)["frontend"].standbys == before.standbys
    with urllib.request.urlopen(service.facts["openai"] + "/models") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
@pytest.mark.parametrize("victims", ["serving", "standbys", "all"])
def test_a_signal_from_outside_ends_no_stream(simulated: Service, victims: str, number: int) -> None:
    """To each process at once, whatever it does: deaths that have one cause end a service, others do not."""
    service = simulated
    wait_until_ready(service)
    expected = asyncio.run(stream_all(service.address))
    roles = processes(service).values()
    serving = [role.serving for role in roles] if victims != "standbys" else []
    standbys = [pid for role in roles for pid in role.standbys] if victims != "serving" else []

    def strike() -> None:
        for pid in serving + standbys:
            os.kill(pid, number)

    assert asyncio.run(stream_all(service.address, strike)) == expected
    assert service.is_running
    if number == signal.SIGSTOP:
        for pid in serving + standbys:
            with contextlib.suppress(ProcessLookupError):  # it was found, and killed
                os.kill(pid, signal.SIGCONT)
    else:  # a frontend that is told to end leaves when its streams are over
        wait_until_replaced(service, serving + standbys)
    wait_until_ready(service)


def wait_until_ready(service: Service) -> None:
    """Waits until the service answers, and has all of its standbys."""
    services.wait_until(lambda: services.have_standbys(service))
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)


def wait_until_replaced(service: Service, ended: list[int]) -> None:
    """Waits until these processes are gone, and the service is ready without them."""
    services.wait_until(lambda: set(ended).isdisjoint(chain(*services.processes(service.pid).values())))
    wait_until_ready(service)


class Role(NamedTuple):
    """The processes of one command."""

    serving: int
    standbys: list[int]


def processes(service: Service) -> dict[str, Role]:
    """Returns the processes of each command, one of which serves."""
    found = services.settled(service.pid)
    roles = {}
    for name in ("engine", "worker", "frontend"):
        (serving,) = (pid for pid in found[name] if not services.stands_by(pid))
        roles[name] = Role(serving, [pid for pid in found[name] if services.stands_by(pid)])
    return roles


async def stream_all(address: str, strike: Callable[[], None] = lambda: None) -> list[list[int]]:
    """Returns the tokens of all streams. strike: called once, in the middle of the first one."""
    async with AsyncClient(address) as client:

        async def one(params: SamplingParams, strike: Callable[[], None] = lambda: None) -> list[int]:
            tokens: list[int] = []
            async with client.stream("The capital of France is", params) as stream:
                async for delta in stream:
                    if len(tokens) < 40 <= len(tokens) + len(delta.token_ids):
                        strike()
                    tokens += delta.token_ids
            return tokens

        first, *others = PARAMS
        return list(await asyncio.gather(one(first, strike), *map(one, others)))


def counter(service: Service, name: str) -> float:
    """Returns the value of a metric that one process has."""
    (value,) = services.metric(service.facts, name)
    return value
