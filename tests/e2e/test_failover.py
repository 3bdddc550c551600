"""Two engine cores and several frontends, which are killed. The Python clients go on by themselves, with
several addresses and with one; what runs anywhere is aborted from anywhere."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire import AsyncClient, Client
from pagewire.local_service import Service
from pagewire_client.results import Generation
from tests.e2e import services

PROMPT = "1, 2, 3,"
LONG = {"max_tokens": 900, "ignore_eos": True, "seed": 7}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with services.start(
        device="simulated", profile="cpu", frontends=2, data_parallel_size=2, max_deaths=99
    ) as service:
        yield service


@pytest.fixture(scope="module")
def twin(service: Service) -> Generation:
    with Client(service.address) as client:
        return client.generate(PROMPT, **LONG)


@pytest.fixture
def frontends(service: Service, tmp_path: Path) -> Iterator[list[services.Frontend]]:
    """Two more frontends without a supervisor, which read the engine addresses from a file."""
    file = tmp_path / "engines"
    file.write_text("\n".join(services.engine_addresses(service)))
    started = [services.Frontend(f"@{file}") for _ in range(2)]
    yield started
    for each in started:
        each.close()


def stream_and_kill(address: str | list[str], kill: Callable[[], None]) -> Generation:
    """Kills the frontend that has sent the first message."""
    with Client(address) as client, client.stream(PROMPT, **LONG) as stream:
        next(stream)
        kill()
        return stream.result()


async def stream_and_kill_async(address: str | list[str], kill: Callable[[], None]) -> Generation:
    async with AsyncClient(address) as client, client.stream(PROMPT, **LONG) as stream:
        await anext(stream)
        kill()
        return await stream.result()


def kill_all_frontends(service: Service) -> None:
    for pid in services.processes(service.pid)["frontend"]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_with_several_addresses(
    service: Service, twin: Generation, frontends: list[services.Frontend], asynchronous: bool
):
    first, second = frontends
    addresses = [first.address, second.address]
    if asynchronous:
        result = asyncio.run(stream_and_kill_async(addresses, first.kill))
    else:
        result = stream_and_kill(addresses, first.kill)
    assert result.outputs == twin.outputs and result.usage.completion_tokens == 900


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_with_one_address_and_several_frontends_behind_it(
    service: Service, twin: Generation, asynchronous: bool
):
    """All frontends die; streams continue on the first that is back."""
    if asynchronous:
        result = asyncio.run(stream_and_kill_async(service.address, lambda: kill_all_frontends(service)))
    else:
        result = stream_and_kill(service.address, lambda: kill_all_frontends(service))
    assert result.outputs == twin.outputs
    with Client(service.address) as client:
        client.wait_ready()


@pytest.mark.parametrize("rank", [0, 1])
def test_abort_from_any_frontend_at_any_engine(
    service: Service, frontends: list[services.Frontend], rank: int
):
    first, second = frontends
    with Client(first.address) as owner, Client(second.address) as operator:
        options = {**LONG, "request_id": f"r{rank}", "data_parallel_rank": rank}
        alone = [int(each == rank) for each in range(2)]
        services.wait_until(lambda: services.aborted_elsewhere(owner, operator, PROMPT, **options) == alone)
        services.wait_until(lambda: services.is_idle(operator))
