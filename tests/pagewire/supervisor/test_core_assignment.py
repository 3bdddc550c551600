"""When the processes of a service are pinned to separate cores, and the log line about it."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.config import ServeConfig
from pagewire.host import resources
from pagewire.host.resources import CorePlan
from pagewire.supervisor import process_specs
from pagewire.supervisor.process_specs import engine_slots

LARGE = ServeConfig(load_format="dummy", device="cpu")


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[set[int]]:
    """Fakes four cores; returns the calls that pin the process."""
    caplog.set_level(logging.INFO)
    calls: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, numbers: calls.append(set(numbers)))
    monkeypatch.setattr(resources, "cpu_limit", lambda: 64.0)
    monkeypatch.setattr(process_specs, "GPU", Path("/nonexistent"))
    return calls


def test_a_worker_has_its_own_cores(pinned: list[set[int]], caplog: pytest.LogCaptureFixture) -> None:
    plan = process_specs.share_cores(LARGE)
    assert plan == CorePlan(((1, 2, 3),), (0,)) and pinned == [{0}]
    assert caplog.messages == ["cores: 1-3 for the worker, 0 for all other processes"]


@pytest.mark.parametrize(
    ("config", "limit", "why"),
    [
        (replace(LARGE, no_pinning=True), 64.0, "--no-pinning"),
        (replace(LARGE, device="simulated"), 64.0, "the worker does not compute on them"),
        (replace(LARGE, device="cuda"), 64.0, "the worker does not compute on them"),
        (LARGE, 3.0, "a control group grants the time of that many, of 4"),
        (replace(LARGE, load_format="auto"), 64.0, "the model is small, and its worker has one thread"),
        (replace(LARGE, threads=4), 64.0, "they are too few to be divided"),
    ],
)
def test_all_processes_share_all_cores(
    pinned: list[set[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: ServeConfig,
    limit: float,
    why: str,
) -> None:
    monkeypatch.setattr(resources, "cpu_limit", lambda: limit)
    assert process_specs.share_cores(config) is None and pinned == []
    assert caplog.messages == [f"cores: {min(4, int(limit))} for all processes: {why}"]


def test_a_gpu_may_be_what_auto_means(pinned: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_specs, "GPU", Path("/"))
    assert process_specs.share_cores(replace(LARGE, device="auto")) is None
    assert process_specs.share_cores(LARGE) is not None


def test_where_it_is_not_permitted(
    pinned: list[set[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(pid: int, numbers: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert process_specs.share_cores(LARGE) is None
    assert "they cannot be pinned: [Errno 1] Operation not permitted" in caplog.text


def test_each_engine_core_tells_its_worker(tmp_path: Path) -> None:
    plan = CorePlan(((1, 2), (3, 4, 6)), (0,))
    slots = engine_slots(replace(LARGE, data_parallel_size=2), tmp_path, plan)
    told = [[a for a in slot.arguments if a.startswith("--worker-cores")] for slot in slots]
    assert told == [["--worker-cores=1-2"], ["--worker-cores=3-4,6"]]
    (slot,) = engine_slots(LARGE, tmp_path)
    assert not any(a.startswith("--worker-cores") for a in slot.arguments)
