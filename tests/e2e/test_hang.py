"""Processes hang while streams run: they are found out, and each stream gets the tokens of the formula."""

import asyncio
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.errors import Unavailable
from pagewire_simulated.tokens import token_reference
from tests.e2e import services
from tests.e2e.services import Serve
from tests.e2e.test_simulated import CANDIDATES, without_weights
from tests.free_ports import free_ports
from tests.patience import soon

HOOKS = Path(__file__).parent / "hooks"
NUM_STREAMS, LENGTH = 6, 200
HANG_TIMEOUT_S = 1.5
"""Half of the default: a test has better things to do than to wait."""
FLAGS = {"device": "simulated", "profile": "cpu", "hang_timeout": HANG_TIMEOUT_S, "max_restart_pause": 0.0}
SLOWLY = {"worker_fault": ("slow-factor=100",)}
"""Steps of 4 ms."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_weights(tmp_path_factory.mktemp("hang"))


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """SIGUSR1 makes any of its processes hang with the GIL: see the hooks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HOOKS), prepend=os.pathsep)
        started = services.start(folder, frontends=2, max_deaths=99, **FLAGS, **SLOWLY)
    with started:
        yield started


class Streams:
    """So many at once, each with another prompt and another number of sequences."""

    def __init__(self, client: AsyncClient) -> None:
        self.num_tokens = 0
        self._client = client

    async def one(self, number: int) -> None:
        prompt, n = [16 + number * place % 1000 for place in range(1 + 3 * number)], 1 + number % 2
        params = SamplingParams(temperature=1.0, seed=number, n=n, max_tokens=LENGTH)
        received: dict[int, list[int]] = {index: [] for index in range(n)}
        while not await self._was_taken(prompt, params, received):
            await asyncio.sleep(0.05)
        for index, token_ids in received.items():
            assert token_ids == [
                token_reference(prompt, number, index, at, CANDIDATES) for at in range(LENGTH)
            ]

    async def _was_taken(
        self, prompt: list[int], params: SamplingParams, received: dict[int, list[int]]
    ) -> bool:
        """Reads a stream to its end. False: it was refused, since one of the frontends still waits for the
        engine whose predecessor was killed by the test before."""
        try:
            async with self._client.stream(prompt, params) as stream:
                async for delta in stream:
                    assert delta.position == len(received[delta.index])
                    received[delta.index] += delta.token_ids
                    self.num_tokens += len(delta.token_ids)
        except Unavailable as error:
            if error.reason != "ENGINE_NOT_READY" or any(received.values()):
                raise
            return False
        return True

    async def all(self) -> None:
        await asyncio.gather(*map(self.one, range(NUM_STREAMS)))


async def run_with(service: Service, fault: Callable[[], Awaitable[None]]) -> None:
    """Streams, and the fault when they have some tokens, and not all. A slow client may find that they are
    over: then they are run again."""
    async with AsyncClient(service.address) as client:
        running, streams = asyncio.create_task(asyncio.sleep(0)), Streams(client)
        while streams.num_tokens < NUM_STREAMS * LENGTH // 4 or running.done():
            if running.done():
                running.result()  # raises what has ended them, if anything
                streams = Streams(client)
                running = asyncio.create_task(soon(streams.all()))
            await asyncio.sleep(0.005)
        await fault()
        await running


def one_of(service: Service, victim: str) -> int:
    return services.processes(service.pid)[victim][-1]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "keeps-the-gil"])
@pytest.mark.parametrize("victim", ["engine", "worker", "frontend"])
def test_a_process_that_hangs_is_replaced(service: Service, victim: str, number: signal.Signals):
    pid = one_of(service, victim)

    async def hang() -> None:
        os.kill(pid, number)

    with services.all_die([pid]):
        asyncio.run(run_with(service, hang))
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)
        services.wait_until(lambda: services.is_idle(client))


def test_health_tells_of_a_hang(service: Service):
    """From the fault on it says nothing for a while; then that it does not serve, then that it does."""

    async def watch() -> None:
        states = health_pb2.HealthCheckResponse
        async with grpc.aio.insecure_channel(service.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await soon(watch.read())).status == states.SERVING
            os.kill(one_of(service, "engine"), signal.SIGSTOP)
            assert (await soon(watch.read())).status == states.NOT_SERVING
            assert (await soon(watch.read())).status == states.SERVING

    asyncio.run(run_with(service, watch))


def test_an_idle_worker_that_is_stopped_does_not_wait_for_a_request(service: Service):
    pid = one_of(service, "worker")
    with services.all_die([pid]):
        os.kill(pid, signal.SIGSTOP)
    with Client(service.address) as client:
        client.wait_ready(services.PATIENCE_S)


def test_a_process_that_was_only_stopped_for_a_moment_goes_on(service: Service):
    """All of them, as when the lid of a laptop is closed, and one after the other."""
    found: dict[str, list[int]] = {}

    async def pause() -> None:
        found.update(services.processes(service.pid))  # now that a worker serves the streams
        pids = [pid for each in found.values() for pid in each]
        for group in ([*pids, service.pid], *([pid] for pid in pids)):
            for pid in group:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(2 * HANG_TIMEOUT_S if service.pid in group else 0.3)
            for pid in group:
                os.kill(pid, signal.SIGCONT)

    asyncio.run(run_with(service, pause))
    assert services.processes(service.pid) == found


def test_killed_again_at_each_stage_of_the_recovery(service: Service):
    """As soon as the next core is there, as soon as it has a worker, and when it has just been welcomed."""

    async def kill_again_and_again() -> None:
        for stage in ("engine", "worker", "engine", "worker", "serving"):
            before = services.processes(service.pid).get("engine", [])
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            role = "engine" if stage == "serving" else stage
            while set((found := services.processes(service.pid)).get("engine", before)) & set(before) or (
                role not in found
            ):
                await asyncio.sleep(0.002)
        async with AsyncClient(service.address) as client:
            await client.wait_ready(services.PATIENCE_S)
        os.kill(one_of(service, "worker"), signal.SIGKILL)

    asyncio.run(run_with(service, kill_again_and_again))


def test_a_core_that_wakes_up_is_a_stranger(folder: Path, tmp_path: Path):
    """No supervisor kills it. Requests that were sent before are sent again."""
    (port,) = free_ports(1)
    engine_flags = ("--device=simulated", "--profile=cpu", "--worker-fault=slow-factor=100")
    with (
        services.alone(tmp_path, "engine", str(folder), *engine_flags) as engine,
        services.alone(tmp_path, "frontend", str(folder), f"--port={port}"),
        Client(f"127.0.0.1:{port}") as client,
    ):
        client.wait_ready(services.PATIENCE_S)
        stream = client.stream([20, 30], temperature=1.0, seed=3, max_tokens=500, ignore_eos=True)
        token_ids = [token for delta in itertools.islice(stream, 20) for token in delta.token_ids]
        engine.send_signal(signal.SIGSTOP)
        services.wait_until(lambda: not client.healthy())
        engine.send_signal(signal.SIGCONT)
        token_ids += [token for delta in stream for token in delta.token_ids]
        assert token_ids == [token_reference([20, 30], 3, 0, at, CANDIDATES) for at in range(500)]
        services.wait_until(lambda: services.is_idle(client))


def test_a_worker_that_hangs_at_the_same_step_of_each_life(folder: Path, serve: Callable[..., Serve]):
    """Each life brings the streams some tokens further: nine, as each step is a plan. It says one line for
    each hang."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items()]
    flags += ["--worker-fault=hang-at-step=10", "--burst-ms=0"]
    running = serve(str(folder), *flags, "--max-deaths=9", "--log-level=warning")
    prompt = [20, 30]
    with Client(running.wait_ready()["address"]) as client:
        answer = client.generate(prompt, temperature=1.0, seed=3, max_tokens=25)
    assert answer.token_ids == [token_reference(prompt, 3, 0, at, CANDIDATES) for at in range(25)]
    running.process.send_signal(signal.SIGINT)
    code, words = running.end()
    said = [line for line in words.splitlines() if "pagewire.supervisor.supervisor" in line]
    assert code == 0
    assert [("hangs: a step has taken" in line, "is back after" in line) for line in said] == [
        (True, False),
        (False, True),
    ] * 2, words
    assert words.count("makes no progress; its threads:") == 2, words


def test_ten_times_slower_is_no_hang(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A first prompt that takes longer than what counts as hung where nothing better is known: of a model
    of 400M parameters, which the worker knows to take 2 ms per token of a prompt."""
    shutil.copytree(folder, tmp_path / "large")
    config = json.loads((tmp_path / "large" / "config.json").read_text())
    size = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    (tmp_path / "large" / "config.json").write_text(json.dumps(config | size | heads))
    with (
        services.start(
            tmp_path / "large", no_restart=True, worker_fault=("slow-factor=10",), num_blocks=64, **FLAGS
        ) as service,
        Client(service.address) as client,
    ):
        began = time.monotonic()
        answer = client.generate([20] * 120, temperature=0, max_tokens=3)
        assert time.monotonic() - began > HANG_TIMEOUT_S, "else this test says nothing"
        assert len(answer.token_ids) == 3


def test_a_patience_that_would_kill_every_process_is_refused(folder: Path, serve: Callable[..., Serve]):
    code, words = serve(str(folder), "--device=simulated", "--hang-timeout=0.5").end()
    assert code == 1 and "--hang-timeout is 0.5" in words
