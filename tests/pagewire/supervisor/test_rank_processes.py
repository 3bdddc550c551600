"""The ranks of one host: all are replaced when one ends, for as long as it takes."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Self

import pytest

from pagewire import flags
from pagewire.config import RanksConfig, WorkerConfig
from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.proc_stat import read_vitals
from pagewire.supervisor import rank_processes
from pagewire.supervisor.rank_processes import RankProcesses, rank_arguments
from tests.patience import wait_until

CONFIG = RanksConfig(
    tensor_parallel_size=4,
    nnodes=2,
    node_rank=1,
    master_addr="127.0.0.1",
    master_port=7,
    curve_key="k",
    threads=3,
    hang_timeout=1e-9,
    log_format="json",
)
SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


class Script:
    """Stands in for Signals: at each wait it does the next thing; SIGTERM comes after the last."""

    def __init__(self, *things: Callable[[], object]) -> None:
        self._things = list(things)
        self.pauses: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is restored."""

    def wait(self, seconds: float) -> set[signal.Signals]:
        if seconds != rank_processes._LOOK_S:
            self.pauses.append(seconds)
            return set()
        if not self._things:
            return {signal.SIGTERM}
        self._things.pop(0)()
        return set()


class Processes:
    """What was started, in order."""

    def __init__(self, *events: dict[str, object]) -> None:
        """events: on the status pipe of each."""
        self.commands: list[list[str]] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self._events = events

    def spawn(self, arguments: Sequence[str], **options: object) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        os.write(writing, b"".join(json.dumps(event).encode() + b"\n" for event in self._events))
        os.close(writing)
        self.commands.append(list(arguments))
        self.started.append(subprocess.Popen(SLEEPS, **options))  # type: ignore[call-overload]
        return self.started[-1], reading

    def end(self, number: int, how: signal.Signals) -> Callable[[], None]:
        def end() -> None:
            pid = self.started[number].pid
            os.kill(pid, how)
            state = "Z" if how is signal.SIGKILL else "T"
            wait_until(lambda: (read_vitals(pid) or read_vitals(os.getpid())).state == state)  # type: ignore[union-attr]

        return end


def run(monkeypatch: pytest.MonkeyPatch, processes: Processes, script: Script) -> int:
    monkeypatch.setattr(process, "spawn", processes.spawn)
    monkeypatch.setattr(rank_processes, "Signals", lambda: script)
    return RankProcesses(CONFIG).run()


def test_what_a_rank_is_told():
    config = flags.parse(WorkerConfig, rank_arguments(CONFIG, 3)[1:], command="worker", environment={})
    assert config == WorkerConfig(
        engine="tcp://127.0.0.1:7",
        rank=3,
        group_size=4,
        master_addr="127.0.0.1",
        curve_key="k",
        threads=3,
        process_name="rank-3",
        log_format="json",
    )


def test_the_end_of_one_is_the_end_of_all_and_others_follow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """After pauses that grow, until a signal."""
    caplog.set_level(logging.WARNING)
    processes = Processes()
    script = Script(processes.end(1, signal.SIGKILL), processes.end(2, signal.SIGKILL))
    assert run(monkeypatch, processes, script) == 0
    assert [command[3] for command in processes.commands] == ["--rank=2", "--rank=3"] * 3
    for each in processes.started:
        assert each.wait() == -signal.SIGKILL
    assert script.pauses == [0.5, 1.0]
    assert caplog.messages == [
        "rank 3 is gone: it was killed by SIGKILL, which is also what happens when memory runs out;"
        " the ranks of this host start again in 0.5 s",
        "rank 2 is gone: it was killed by SIGKILL, which is also what happens when memory runs out;"
        " the ranks of this host start again in 1.0 s",
    ]


def test_a_rank_that_is_stopped_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    processes = Processes()
    stopped = processes.end(0, signal.SIGSTOP)
    script = Script(stopped, lambda: None, lambda: None)
    assert run(monkeypatch, processes, script) == 0
    assert len(processes.started) == 4
    assert caplog.messages[0].startswith("rank 2 hangs: it was stopped, and is killed;")


def test_a_rank_that_cannot_start_ends_the_command(monkeypatch: pytest.MonkeyPatch):
    failed = {"event": "failed", "what": "cannot use --curve-key", "why": "no such file", "todo": "make it"}
    processes = Processes(failed)
    with pytest.raises(StartupError, match="no such file"):
        run(monkeypatch, processes, Script(lambda: None))
    assert [each.wait() for each in processes.started] == [-signal.SIGKILL] * 2
