"""What the process between the supervisor and smg does, step by step, with an smg that is none."""

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pagewire.config import GatewayConfig
from pagewire.errors import StartupError
from pagewire.logs import JsonFormatter
from pagewire_gateways import smg_process as gateway

CONFIG = GatewayConfig(port=7, backend=("127.0.0.1:1", "127.0.0.1:2"), shutdown_grace=4.0)


class Smg:
    """A child that does at each look what the test says: None goes on, a number is its exit code."""

    pid = 1

    def __init__(self, *looks: int | Callable[[], None] | None) -> None:
        self._looks = list(looks)
        self.calls: list[tuple[str, float | None]] = []

    def wait(self, timeout: float | None = None) -> int:
        self.calls.append(("wait", timeout))
        assert len(self.calls) < 100, "it is looked at for ever"
        if timeout is None:
            return 0
        look = self._looks.pop(0) if self._looks else None
        if isinstance(look, int):
            return look
        if look is not None:
            look()
        raise subprocess.TimeoutExpired("smg", timeout)

    def terminate(self) -> None:
        self.calls.append(("terminate", None))

    def kill(self) -> None:
        self.calls.append(("kill", None))


ENDS = [("terminate", None), ("wait", 5.0), ("kill", None), ("wait", None)]
"""The last that is done to any smg: it has its grace and a second."""


class World:
    """What the process finds and does; its signals' handlers; smg serves as soon as it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handlers: dict[int, Any] = {}
        self.done: list[object] = []
        self.asked: list[str] = []
        self.answers = True  # of smg's probe
        self.health: Iterator[bool] = repeat(True)
        probe = SimpleNamespace(
            start=lambda: self.done.append("probe"),
            close=lambda: self.done.append("probe closed"),
            take_answer=lambda: self.answers,
        )
        monkeypatch.setattr(gateway.signal, "signal", self.handlers.__setitem__)
        monkeypatch.setattr(gateway.grpc, "insecure_channel", self.open_channel)
        monkeypatch.setattr(gateway, "_is_healthy", lambda channel: next(self.health))
        monkeypatch.setattr(gateway, "_LOOK_S", 0.0)
        monkeypatch.setattr(gateway, "serves", lambda host, port: (host, port) == ("127.0.0.1", 7))
        monkeypatch.setattr(gateway, "SmgProbe", lambda host, port: probe)
        monkeypatch.setattr(gateway, "read_vitals", lambda pid: None)
        status = SimpleNamespace(
            ready=lambda **facts: self.done.append(facts), beat=lambda: self.done.append("beat")
        )
        monkeypatch.setattr(gateway.process, "Status", lambda: status)
        monkeypatch.setattr(gateway.process, "Heartbeat", lambda beat: beat)
        self._monkeypatch = monkeypatch

    def open_channel(self, address: str) -> Any:
        self.asked.append(address)
        return nullcontext()

    def run(self, smg: Smg | None, config: GatewayConfig = CONFIG) -> int:
        """smg: what is started; None: nothing may be."""

        def start(self: gateway.Gateway) -> Smg:
            assert smg is not None
            return smg

        self._monkeypatch.setattr(gateway.Gateway, "_start", start)
        return gateway.Gateway(config).run()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """A signal."""
        self.handlers[number](number, None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_smg_and_then_the_process(world: World, number: int) -> None:
    """It has served in between, and was reported with its address once."""
    smg = Smg(None, None, None, lambda: world.stop(number))
    assert world.run(smg) == 0
    assert smg.calls == [("wait", 0.0)] * 4 + ENDS
    assert world.asked == list(CONFIG.backend), "each frontend, before smg was started"
    others = [each for each in world.done if each != "beat"]
    assert others == ["probe", {"gateway": "http://127.0.0.1:7"}, "probe closed"]
    assert world.done.count("beat") == 4, "one at each look"


def test_a_signal_while_a_frontend_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and the process beats while it waits, and rests in between."""
    monkeypatch.setattr(gateway.time, "sleep", lambda seconds: world.done.append(seconds))

    def answers() -> Iterator[bool]:
        yield False
        yield True
        world.stop()
        yield False

    world.health = answers()
    assert world.run(None) == 0
    assert world.asked == list(CONFIG.backend) and world.done == ["beat", 0.0, "beat", 0.0]


@pytest.mark.parametrize("served", [False, True])
def test_smg_that_crashes_counts_as_a_death(world: World, served: bool) -> None:
    smg = Smg(None, 3) if served else Smg(3)
    with pytest.raises(StartupError) as ended:
        world.run(smg)
    assert (ended.value.what, ended.value.why) == ("smg has ended", "it ended with exit code 3")
    assert ended.value.todo == "see the lines above" and not ended.value.may_pass
    assert smg.calls[-4:] == ENDS and "probe closed" in world.done


@pytest.mark.parametrize(("patience", "answers"), [(0.0, False), (5.0, True)])
def test_smg_is_let_run(
    world: World, monkeypatch: pytest.MonkeyPatch, patience: float, answers: bool
) -> None:
    """A minute at each look: it answers, or its silence does not matter."""
    monkeypatch.setattr(gateway.AwakeTime, "passed", lambda self, now, most: 60.0 if not answers else 2.0)
    world.answers = answers
    smg = Smg(*[None] * 9, world.stop)
    assert world.run(smg, GatewayConfig(port=7, shutdown_grace=4.0, hang_timeout=patience)) == 0
    assert smg.calls == [("wait", 0.0)] * 10 + ENDS


def test_smg_that_was_killed_while_it_served_may_be_started_again(world: World) -> None:
    with pytest.raises(StartupError) as ended:
        world.run(Smg(None, -9))
    assert ended.value.may_pass


def test_silent_smg_is_killed_when_its_patience_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 s at each look, from the one after that at which it served."""
    monkeypatch.setattr(gateway.AwakeTime, "passed", lambda self, now, most: 3.0)
    world.answers = False
    smg = Smg()
    with pytest.raises(StartupError) as ended:
        world.run(smg, GatewayConfig(port=7, shutdown_grace=4.0, hang_timeout=8.0))
    assert (ended.value.what, ended.value.may_pass) == ("smg hangs", False)
    assert ended.value.why == "it has not answered for 9.0 s, and was killed"
    assert ended.value.todo == "if it was only slow, raise --hang-timeout"
    assert smg.calls == [("wait", 0.0)] * 4 + [("kill", None)] + ENDS


def test_how_smg_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this Python, without the folder it is in; its lines go to the log; it dies with this process."""
    started: list[tuple[list[str], dict[str, Any]]] = []
    died: list[tuple[int, int]] = []
    monkeypatch.setattr(
        gateway.subprocess, "Popen", lambda command, **options: started.append((command, options))
    )
    monkeypatch.setattr(gateway.process, "die_with", lambda parent, number: died.append((parent, number)))
    monkeypatch.setattr(gateway.process, "child_environment", lambda: {"OF": "a child"})
    gateway.Gateway(CONFIG)._start()
    ((command, options),) = started
    assert command[:5] == [sys.executable, "-P", "-m", "smg", "launch"] and "--port=7" in command
    metrics = next(word for word in command if word.startswith("--prometheus-port="))
    assert int(metrics.partition("=")[2]) >= 1024, "any that is free"
    assert options["stdin"] == subprocess.DEVNULL and options["stdout"] == sys.stderr.fileno()
    assert options["env"] == {"OF": "a child"}
    options["preexec_fn"]()
    assert died == [(gateway.os.getpid(), signal.SIGKILL)]


@pytest.mark.parametrize(
    ("error", "why", "passes"),
    [(OSError(12, "Cannot allocate memory"), "Cannot allocate memory", True), (OSError("x"), "x", False)],
)
def test_a_system_that_cannot_start_smg(
    monkeypatch: pytest.MonkeyPatch, error: OSError, why: str, passes: bool
) -> None:
    def popen(command: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(gateway.subprocess, "Popen", popen)
    with pytest.raises(StartupError) as refused:
        gateway.Gateway(CONFIG)._start()
    assert (refused.value.what, refused.value.why, refused.value.may_pass) == (
        "cannot start smg",
        why,
        passes,
    )


@pytest.mark.parametrize(
    ("level", "of_smg"), [("debug", "debug"), ("info", "warn"), ("warning", "warn"), ("error", "error")]
)
def test_levels_of_the_log(level: Any, of_smg: str) -> None:
    arguments = gateway.smg_arguments(GatewayConfig(log_level=level), 9)
    assert arguments[0] == "launch" and f"--log-level={of_smg}" in arguments


def test_the_log_is_json_where_ours_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--log-json" not in gateway.smg_arguments(CONFIG, 9)
    handler = logging.NullHandler()
    handler.setFormatter(JsonFormatter("gateway"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    arguments = gateway.smg_arguments(CONFIG, 9)
    assert arguments[-1] == "--log-json" and arguments[-2] == "grpc://127.0.0.1:2"


@pytest.fixture
def frontend() -> Iterator[tuple[health.HealthServicer, grpc.Channel]]:
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, channel
    server.stop(None).wait()


def test_a_frontend_is_asked_for_its_health(frontend: tuple[health.HealthServicer, grpc.Channel]) -> None:
    """One that has no service yet, does not serve, serves, is gone."""
    servicer, channel = frontend
    states = health_pb2.HealthCheckResponse
    servicer.set("", states.NOT_SERVING)
    assert gateway._is_healthy(channel) is False
    servicer.set("", states.SERVING)
    assert gateway._is_healthy(channel) is True
    with grpc.insecure_channel("127.0.0.1:1") as nowhere:
        assert gateway._is_healthy(nowhere) is False
