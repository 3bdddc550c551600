"""A standby of the engine core and its worker, or of the frontend, takes over in the middle of streams."""

import asyncio
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire import AsyncClient, SamplingParams
from pagewire.local_service import Service
from tests.e2e import services

PARAMS = [
    SamplingParams(max_tokens=250, ignore_eos=True, seed=seed, temperature=seed / 2) for seed in range(4)
]

KINDS, BLOCK_SIZE = ("queries", "hits"), 16


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    flags = {"standbys": 1, "dtype": "float32", "max_deaths": 99, "openai_port": 0}
    with services.start(no_standby=False, **flags) as service:
        yield service


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_a_standby_continues_streams_exactly(service: Service, victim: str) -> None:
    """On the real model: the process that goes on is the one that waited, and no token changes. A worker
    lives on when its core is killed, and a core does not when its worker is."""
    services.wait_until(lambda: has_standby(service))
    expected = asyncio.run(stream_all(service.address))
    serving, waiting, *_ = oldest_first(service, "engine")
    worker, *_ = oldest_first(service, "worker")
    killed = serving if victim == "engine" else worker
    streams = stream_all(service.address, lambda: os.kill(killed, signal.SIGKILL))
    assert asyncio.run(streams) == expected
    assert oldest_first(service, "engine")[0] == waiting
    assert (oldest_first(service, "worker")[0] == worker) == (victim == "engine")
    if victim == "engine":
        asked, found = (counter(service, f"pagewire_core_prefix_cache_{name}_total") for name in KINDS)
        assert 0 < asked - found <= len(PARAMS) * 2 * BLOCK_SIZE, "full blocks are not computed again"
        assert found >= len(PARAMS) * BLOCK_SIZE
    services.wait_until(lambda: has_standby(service))


def test_a_standby_of_the_only_frontend_continues_streams(service: Service) -> None:
    """The process that goes on is the one that waited, at the same ports, and clients continue by
    themselves."""
    services.wait_until(lambda: has_standby(service))
    expected = asyncio.run(stream_all(service.address))
    serving, waiting = oldest_first(service, "frontend")
    streams = stream_all(service.address, lambda: os.kill(serving, signal.SIGKILL))
    assert asyncio.run(streams) == expected
    assert oldest_first(service, "frontend")[0] == waiting
    with urllib.request.urlopen(service.facts["openai"] + "/models") as answer:
        assert answer.status == 200
    services.wait_until(lambda: has_standby(service))


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


def oldest_first(service: Service, command: str) -> list[int]:
    """Returns the processes of a command; the oldest serves."""
    return sorted(services.processes(service.pid)[command], key=start_time)


def has_standby(service: Service) -> bool:
    """Returns what the supervisor says of the core's standby and the frontend's."""
    return values(service, "pagewire_supervisor_standby_ready") == [1, 1]


def counter(service: Service, name: str) -> float:
    """Returns the value of a metric that one process has."""
    (value,) = values(service, name)
    return value


def values(service: Service, name: str) -> list[float]:
    """Returns the values of a metric, of each process that has it."""
    with urllib.request.urlopen(f"http://{service.facts['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")]


def start_time(pid: int) -> int:
    """Returns when a process was started, in ticks of the kernel's clock."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
