"""A peer is a process that answers, or ends, or hangs: the caller gets one line in each case."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.versus.child import Child, PeerFailed
from benchmarks.versus.peers.harness import Settings
from pagewire_bench.workloads import Request
from tests.benchmarks.fake_peer import DIES, HANGS, TOO_FEW
from tests.patience import PATIENCE_S

SCRIPT = Path(__file__).with_name("fake_peer.py")
SETTINGS = Settings("a model", "bf16", 2, 4096, 64, 2)


def start(log: Path, script: Path = SCRIPT) -> Child:
    return Child([sys.executable, str(script)], SETTINGS, os.environ, log)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with closing(start(tmp_path / "log")) as made:
        yield made


def test_runs(child: Child) -> None:
    assert child.versions == {"model": "a model", "threads": "2"}
    for sizes in ((3,), (1, 2)):
        answer = child.run([Request([1, 2], size) for size in sizes], PATIENCE_S)
        assert [sum(tokens for _, tokens in each) for each in answer.arrivals] == list(sizes)
        times = [at for each in answer.arrivals for at, _ in each]
        assert 0 <= answer.sent[0] <= times[0] and max(times) <= answer.seconds


@pytest.mark.parametrize(
    ("output", "patience_s", "why"),
    [
        (TOO_FEW, PATIENCE_S, r"^asked for 1001 tokens, got 1000$"),
        (DIES, PATIENCE_S, r"^it ended with 1: RuntimeError: no more \("),
        (HANGS, 0.2, r"^it was killed after 0 s without an answer: loading \("),
    ],
)
def test_failures_are_one_line(child: Child, output: int, patience_s: float, why: str) -> None:
    with pytest.raises(PeerFailed, match=why):
        child.run([Request([1], output)], patience_s)


def test_a_comparison_that_is_told_to_end_waits_for_no_answer(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends when all of its threads have."""

    def told_to_end() -> str:
        raise SystemExit(143)

    monkeypatch.setattr(child._process.stdout, "readline", told_to_end)
    with pytest.raises(SystemExit):
        child.run([Request([1], 1)], PATIENCE_S)
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_one_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="it ended with 2: .*no-such-script.py"):
        start(tmp_path / "log", tmp_path / "no-such-script.py")


def test_one_that_loads_when_the_comparison_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on loading, and then wait for ever."""
    started: list[int] = []

    def told_to_end(child: Child, patience_s: float) -> None:
        started.append(child.pid)
        raise SystemExit(143)

    monkeypatch.setattr(Child, "_read", told_to_end)
    with pytest.raises(SystemExit):
        start(tmp_path / "log")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
