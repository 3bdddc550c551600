"""Commands and scripts against a running service."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine_core.scheduler.planning.bursts import MOST_STEPS
from pagewire import Client
from pagewire.local_service import Service
from pagewire.v1 import inspection_pb2
from tests.e2e import services
from tests.e2e.services import PATIENCE_S, ROOT, is_idle, wait_until
from tests.e2e.test_simulated import without_weights


def run(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_demo():
    shown = run("-m", "pagewire", "demo")
    for words in ("The capital of France is Paris", "1, 2, 3, 4, 5", "Tokyo", "tokens/s", "stopped"):
        assert words in shown
    for words in (
        "Country(country='Italy', capital='Rome')",
        "get_weather(city='Rome')",
        "The weather in Rome is sunny.",
        "thinking:  This is about a capital.\n",
    ):
        assert words in shown


def test_generate_chat_and_health(demo: Service):
    address = f"--address={demo.address}"
    assert "Paris" in run(
        "-m", "pagewire", "generate", "The capital of France is", "--temperature=0", address
    )
    assert "Tokyo" in run(
        "-m", "pagewire", "chat", address, "--temperature=0", stdin="What is the capital of Japan?\n"
    )
    assert "SERVING" in run("-m", "pagewire", "health", address)


def test_ctrl_c_ends_a_generation_here_and_on_the_server(tmp_path: Path):
    """The answer takes a minute: it cannot end before the signal. Meanwhile an operator sees it."""
    folder, slow = without_weights(tmp_path), ("slow-factor=5000",)
    with services.start(
        folder, device="simulated", profile="h200", num_blocks=64, worker_fault=slow
    ) as service:
        arguments = ["generate", "a", "--max-tokens=900", f"--address={service.address}"]
        running = subprocess.Popen(
            [sys.executable, "-m", "pagewire", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        with running:
            assert running.stdout is not None and running.stderr is not None
            assert running.stdout.read(1)
            sees_one_request(service.address)
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
            assert running.stderr.read() == b""
        with Client(service.address) as client:
            wait_until(lambda: is_idle(client))


def sees_one_request(address: str) -> None:
    """AdminService tells of the one request in flight: where it is, and what it holds."""
    with Client(address) as client:
        (info,) = client.list_requests()
        assert (info.phase, info.rank) == (inspection_pb2.REQUEST_PHASE_DECODE, 0)
        assert info.frontend == client.server_info().instance_id and info.timings.decode.ToNanoseconds()
        found = client.explain_request(info.request_id)
        assert found.request.blocks == found.sequences[0].blocks > 0 and not found.sharers
        (pool,) = client.kv_pool(max_cells=8)
        assert pool.holders[0].request_id == info.request_id and sum(pool.cell_held) == pool.held_blocks > 0
        (tenant,) = client.list_tenants()
        assert (tenant.requests, tenant.running_sequences) == (1, 1)
        (engine,) = client.list_engines().engines
        assert (engine.state, engine.device) == (inspection_pb2.ENGINE_STATE_SERVING, "simulated")
    (listed,) = json.loads(run("-m", "pagewire", "requests", "--json", f"--address={address}"))["requests"]
    assert listed["request_id"] == info.request_id


def test_benchmark(demo: Service, tmp_path: Path):
    file = tmp_path / "figures.json"
    arguments = (f"--address={demo.address}", "--workloads=single,batch", "--repeats=1", f"--json={file}")
    shown = run("-m", "benchmarks.service.serve", *arguments)
    assert "tokens/s" in shown and "times the tokens/s of one" in shown
    figures = json.loads(file.read_text())["workloads"]
    assert figures["single"]["tokens_per_s"]["median"] > 0


def test_breakdown(tmp_path: Path):
    """All parts are reported, and worker, core and client agree on their sum."""
    file = tmp_path / "figures.json"
    arguments = ("--start=demo", "--workloads=batch", "--repeats=1", "--breakdown", f"--json={file}")
    assert "the service adds" in run("-m", "benchmarks.service.serve", *arguments)
    (found,) = json.loads(file.read_text())["breakdowns"]["batch"]
    parts = found["parts"]
    assert found["steps"] >= 128 / MOST_STEPS and parts["forward"] > 0 and parts["between steps"] > 0
    assert min(parts.values()) > -0.1 and sum(parts.values()) == pytest.approx(100)
    assert set(found["processors"]) == {"frontend", "reader", "engine", "worker", "client"}
    us_per_token = found["us_per_token"]  # a reader is not needed, and waits
    assert all(us > 0 for name, us in us_per_token.items() if name != "reader")
    per_token = (found[f"{name}_per_token"] for name in ("us", "wake_ups", "preemptions"))
    assert all(set(each) == set(found["processors"]) for each in per_token)
