"""The whole service on a simulated device: every token is known in advance."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.v1 import admin_pb2, admin_pb2_grpc
from pagewire_client.errors import InternalError, Unavailable
from pagewire_client.results import Delta, FinishReason
from pagewire_client.transport import recovery
from pagewire_simulated.tokens import token_reference
from tests.e2e import services

VOCAB_SIZE, EOS = 1024, 2
CANDIDATES = [token for token in range(VOCAB_SIZE) if token != EOS]
NUM_REQUESTS = 64


def without_weights(tmp_path: Path) -> Path:
    """The demo model without its weights."""
    shutil.copytree(checkpoint_folder("demo"), tmp_path / "demo")
    (tmp_path / "demo" / "model.safetensors").unlink()
    return tmp_path / "demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return without_weights(tmp_path)


def prompt_of(number: int) -> list[int]:
    return [16 + (7 * number + i * i) % 1000 for i in range(1 + 5 * (number % 13))]


async def collect(client: AsyncClient, number: int) -> None:
    """Streams one request and checks each token against the formula."""
    prompt, n, length = prompt_of(number), 1 + number % 3, 20 + number % 40
    params = SamplingParams(temperature=1.0, seed=number, n=n, max_tokens=length)
    received: dict[int, list[Delta]] = {index: [] for index in range(n)}
    async with client.stream(prompt, params) as stream:
        async for delta in stream:
            received[delta.index].append(delta)
    for index, deltas in received.items():
        ids = [token for delta in deltas for token in delta.token_ids]
        assert ids == [token_reference(prompt, number, index, at, CANDIDATES) for at in range(length)]
        assert deltas[-1].finish_reason is FinishReason.MAX_TOKENS


async def collect_all(address: str) -> None:
    async with AsyncClient(address) as client:
        await asyncio.gather(*(collect(client, number) for number in range(NUM_REQUESTS)))


@pytest.mark.parametrize("scheduling", ["sync", "ahead"])
def test_64_streams_give_the_tokens_of_the_formula(folder: Path, scheduling: Any):
    """Small steps and few blocks: prompts in chunks, preemption, forks. No weights are there, and torch
    is not loaded."""
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 40, "num_blocks": 24}
    kind = {"device": "simulated", "profile": "instant", "scheduling": scheduling}
    with services.start(folder, **kind, **limits) as service:
        with Client(service.address) as client:
            while not services.rank_load(client).preemptions:  # when requests come decides about that
                asyncio.run(collect_all(service.address))
            stopped = client.generate("a", temperature=0, allowed_token_ids=[EOS], max_tokens=5)
            assert stopped.finish_reason is FinishReason.EOS
            services.wait_until(lambda: services.is_idle(client))
        with grpc.insecure_channel(service.address) as channel:
            info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest())
        assert info.config["device"] == "simulated"
        (worker,) = services.processes(service.pid)["worker"]
        maps = Path(f"/proc/{worker}/maps").read_text()
        assert "numpy" in maps and "torch" not in maps


def test_a_worker_that_dies_on_purpose(serve: Callable[..., services.Serve], monkeypatch: pytest.MonkeyPatch):
    """The fault flag reaches the worker through the environment; waiting clients learn of its death."""
    monkeypatch.setenv("PAGEWIRE_FAULT_DIE_AT_STEP", "10")
    monkeypatch.setattr(recovery, "PATIENCE_S", 1.0)  # no server comes back
    service = serve("--device=simulated", "--profile=instant", "--log-level=error", "--no-restart")
    address = service.wait_ready()["address"]
    with Client(address) as client, pytest.raises(Unavailable):
        client.generate("a b c", temperature=0, max_tokens=50)
    code, words = service.end()
    assert code == 1
    assert "killed by SIGKILL" in words


def test_a_worker_that_always_dies_at_its_tenth_step(
    serve: Callable[..., services.Serve], monkeypatch: pytest.MonkeyPatch
):
    """Each restart continues the stream by some tokens; all tokens are those of the formula."""
    monkeypatch.setenv("PAGEWIRE_FAULT_DIE_AT_STEP", "10")
    service = serve("--device=simulated", "--profile=instant", "--log-level=error", "--max-deaths=9")
    prompt = prompt_of(3)
    with Client(service.wait_ready()["address"]) as client:
        answer = client.generate(prompt, temperature=1.0, seed=3, max_tokens=25)
    assert answer.token_ids == [token_reference(prompt, 3, 0, at, CANDIDATES) for at in range(25)]


def test_a_prompt_that_always_kills_the_worker_is_given_up(
    serve: Callable[..., services.Serve], monkeypatch: pytest.MonkeyPatch
):
    """It is tried four times in all; then the service continues without it."""
    monkeypatch.setenv("PAGEWIRE_FAULT_DIE_ON_TOKEN", "777")
    service = serve("--device=simulated", "--profile=instant", "--log-level=error", "--max-deaths=9")
    with Client(service.wait_ready()["address"]) as client:
        with pytest.raises(InternalError) as failure:
            client.generate([20, 777], max_tokens=5)
        assert failure.value.reason == "REQUEST_QUARANTINED"
        client.wait_ready()
        assert len(client.generate([20, 30], max_tokens=5, ignore_eos=True).token_ids) == 5


def test_an_unknown_profile(serve: Callable[..., services.Serve]):
    code, words = serve("--device=simulated", "--profile=abacus").end()
    assert code == 1
    assert words.splitlines()[-3:] == [
        "error: cannot simulate this machine",
        "why:   there is no profile 'abacus'",
        "do:    use --profile h200, cpu, instant",
    ]
