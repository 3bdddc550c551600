"""A peer that is asked through its server: it answers, or ends, or hangs, and nothing of it stays."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.versus.child import Child, PeerFailed
from benchmarks.versus.peers.harness import Settings
from pagewire_bench.workloads import Request
from tests.benchmarks.fake_server import DIES, HANGS
from tests.patience import PATIENCE_S

SERVER = str(Path(__file__).with_name("fake_server.py"))


def start(log: Path, port: str = "{port}", adapters: Sequence[str] = ()) -> Child:
    command = [sys.executable, SERVER, port]
    settings = Settings("a model", "bf16", 2, 4096, 64, 2, command, {"fake": "1"}, adapters)
    return Child([sys.executable, "-m", "benchmarks.versus.peers.run_server"], settings, os.environ, log)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def child(log: Path) -> Iterator[Child]:
    with closing(start(log)) as made:
        (line,) = (line for line in log.read_text().splitlines() if line.startswith("serving in "))
        server = os.pidfd_open(int(line.split()[-1]))
        yield made
    with closing(os.fdopen(server)):
        assert select.select([server], [], [], PATIENCE_S)[0], "the server has ended"


def test_streams_have_as_many_tokens_as_the_server_counts(child: Child) -> None:
    assert child.versions == {"fake": "1"}
    answer = child.run([Request([1, 2], 3), Request([3], 6)], PATIENCE_S)
    assert [sum(tokens for _, tokens in each) for each in answer.arrivals] == [3, 6]
    times = [at for each in answer.arrivals for at, _ in each]
    assert 0 <= min(answer.sent) <= min(times) and max(times) <= answer.seconds


def test_requests_take_turns_to_have_adapters(log: Path) -> None:
    """Each has answered before the first run."""
    with closing(start(log, adapters=["a", "b"])) as child:
        child.run([Request([1], 3), Request([1], 4), Request([1], 5)], PATIENCE_S)
    asked = [line.split()[2:] for line in log.read_text().splitlines() if line.startswith("asked for")]
    assert asked[:2] == [["a", "1"], ["b", "1"]]
    assert sorted(asked[2:]) == [["a", "3"], ["a", "5"], ["b", "4"]]


@pytest.mark.parametrize(
    ("output", "patience_s", "why"),
    [
        (DIES, PATIENCE_S, r"^it ended with 3: no memory \("),
        (HANGS, 0.2, r"^it was killed after 0 s without an answer: serving in \d+ \("),
    ],
)
def test_failures_are_one_line(child: Child, output: int, patience_s: float, why: str) -> None:
    with pytest.raises(PeerFailed, match=why):
        child.run([Request([1], output)], patience_s)


def test_a_server_that_cannot_start_is_told_by_the_end_of_its_log(log: Path) -> None:
    with pytest.raises(PeerFailed, match=r"^it ended with 1: no such model \("):
        start(log, "none")
