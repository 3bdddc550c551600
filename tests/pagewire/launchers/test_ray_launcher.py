"""What the launcher does with a cluster, without Ray: where ranks start, and again, and what is said."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from pagewire import flags
from pagewire.config import RanksConfig
from pagewire.errors import StartupError
from pagewire.host.spawn import Status
from pagewire.launchers import ray_launcher
from pagewire.launchers.ray_launcher import End, RayLauncher
from pagewire.supervisor.events import STOPPING


class FakeHost:
    """An actor that answers what a test has put into `answers`."""

    def __init__(self) -> None:
        self.answers: list[str | End] = []
        self.closed = False

    def look(self) -> str | End | None:
        return self.answers.pop(0) if self.answers else None

    def close(self) -> None:
        self.closed = True


class FakeCluster:
    def __init__(self) -> None:
        self.placed: tuple[int, int] | None = None
        self.started: list[tuple[int, list[str], str]] = []
        self.hosts: list[FakeHost] = []
        self.lacks, self.headless, self.closed = "2 nodes", "", False

    def place(self, num_hosts: int, num_cpus: int) -> None:
        self.placed = num_hosts, num_cpus

    def missing(self) -> str:
        return self.lacks

    def why_headless(self) -> str:
        return self.headless

    def start(self, bundle: int, arguments: list[str], key: str) -> FakeHost:
        self.started.append((bundle, arguments, key))
        self.hosts.append(FakeHost())
        return self.hosts[-1]

    def close(self) -> None:
        self.closed = True


class Steps:
    """Stands in for Signals: each wait takes its time and a step of the test; a signal comes last."""

    def __init__(self, clock: list[float], *steps: object) -> None:
        self._clock, self._steps = clock, list(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is restored."""

    def wait(self, seconds: float) -> set[object]:
        self._clock[0] += seconds
        if not self._steps:
            return set(STOPPING)
        step = self._steps.pop(0)
        if callable(step):
            step()
        return set()


@pytest.fixture
def config(tmp_path: Path) -> RanksConfig:
    (tmp_path / "client.key").write_text("a secret")
    return RanksConfig(
        tensor_parallel_size=8,
        nnodes=4,
        master_addr="10.0.0.1",
        trusted_network=True,
        curve_key=str(tmp_path / "client.key"),
        launcher="ray",
        ray_address="10.0.0.1:6379",
        threads=3,
        process_name="launcher",
    )


def launch(config: RanksConfig, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *steps: object) -> int:
    clock = [0.0]
    monkeypatch.setattr(ray_launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(ray_launcher, "Signals", lambda: Steps(clock, *steps))
    addresses = []

    def connect(address: str) -> FakeCluster:
        addresses.append(address)
        return cluster

    try:
        return RayLauncher(config, connect).run()
    finally:
        assert addresses == ["10.0.0.1:6379"] and cluster.closed


def test_each_other_host_has_its_ranks(config: RanksConfig, monkeypatch: pytest.MonkeyPatch):
    """CPUs are those of its threads; keys are no file there."""
    cluster = FakeCluster()
    assert launch(config, cluster, monkeypatch, None, None) == 0
    assert cluster.placed == (3, 6)
    assert [bundle for bundle, _, _ in cluster.started] == [0, 1, 2]
    for bundle, arguments, key in cluster.started:
        own = flags.parse(RanksConfig, arguments, command="ranks", environment={})
        assert key == "a secret" and own == RanksConfig(
            tensor_parallel_size=8,
            nnodes=4,
            node_rank=bundle + 1,
            master_addr="10.0.0.1",
            trusted_network=True,
            threads=3,
        )
    assert all(host.closed for host in cluster.hosts)


def test_what_ends_is_started_again_after_pauses_that_grow(
    config: RanksConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    cluster = FakeCluster()
    ends = [lambda: cluster.hosts[1].answers.append(End("its node died")), *[None] * 4]
    again = [lambda: cluster.hosts[3].answers.append(End("it was killed")), *[None] * 6]
    launch(config, cluster, monkeypatch, None, *ends, *again)
    assert [bundle for bundle, _, _ in cluster.started] == [0, 1, 2, 1, 1]
    assert cluster.hosts[1].closed
    assert caplog.messages == [
        "the ranks of --node-rank 2 are gone: its node died; they start again in 0.5 s",
        "the ranks of --node-rank 2 are gone: it was killed; they start again in 1.0 s",
    ]


def test_what_another_start_would_meet_ends_the_command(config: RanksConfig, monkeypatch: pytest.MonkeyPatch):
    cluster, reported = FakeCluster(), []

    def report(self: Status, error: StartupError) -> None:
        assert not cluster.closed, "Ray may end the process there"
        reported.append(error)

    monkeypatch.setattr(Status, "failed", report)
    failure = End("no pagewire", StartupError("cannot start ranks", "no pagewire"))
    fail = lambda: cluster.hosts[0].answers.append(failure)  # noqa: E731
    with pytest.raises(StartupError, match="no pagewire"):
        launch(config, cluster, monkeypatch, None, fail, None)
    assert reported == [failure.failure]


def test_what_the_cluster_lacks_is_said_every_five_seconds(
    config: RanksConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Until all ranks have started, and then no more."""
    caplog.set_level(logging.INFO)
    cluster = FakeCluster()

    def come() -> None:
        for number, host in enumerate(cluster.hosts):
            host.answers.append(f"node-{number}")

    launch(config, cluster, monkeypatch, *[None] * 42, come, *[None] * 60)
    waits = [line for line in caplog.messages if "waiting" in line]
    assert waits == ["waiting for Ray: 2 nodes"] * 2
    assert "the ranks of --node-rank 1 start on node-0" in caplog.messages


def test_a_head_that_is_gone_ends_the_command(config: RanksConfig, monkeypatch: pytest.MonkeyPatch):
    """One that is back in time does not."""
    cluster, config = FakeCluster(), replace(config, hang_timeout=8.0)
    go, come = (lambda why=why: setattr(cluster, "headless", why) for why in ("it is gone", ""))
    assert launch(config, cluster, monkeypatch, go, *[None] * 10, come, *[None] * 30) == 0
    with pytest.raises(StartupError, match="it is gone"):
        launch(config, cluster, monkeypatch, go, *[None] * 20)
    assert launch(replace(config, hang_timeout=0.0), cluster, monkeypatch, go, *[None] * 60) == 0


def test_keys_that_cannot_be_read(config: RanksConfig):
    Path(config.curve_key).unlink()
    with pytest.raises(StartupError, match="client.key: No such file"):
        RayLauncher(config, lambda address: FakeCluster())
