"""How many threads torch gets."""

import os
from pathlib import Path

import pytest

from worker import threads
from worker.threads import available_cores, choose_threads, prepare_threads


def test_as_asked_for():
    assert choose_threads(3, 1 << 40) == 3
    assert choose_threads(3, 1) == 3


def test_small_models_get_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    assert choose_threads(0, 1 << 20) == 1
    assert choose_threads(0, 1 << 30) == 8


@pytest.mark.parametrize(("num_workers", "threads_each"), [(2, 4), (3, 2), (9, 1)])
def test_workers_of_one_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, num_workers: int, threads_each: int
):
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    assert choose_threads(0, 1 << 30, num_workers) == threads_each
    assert choose_threads(3, 1 << 30, num_workers) == 3


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000\n", 8), ("250000 100000\n", 2), ("50000 100000\n", 1), ("", 8)]
)
def test_cores_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, content: str, cores: int):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(Path, "read_text", lambda self: content)
    assert available_cores() == cores


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    prepare_threads()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"]) == ("active", "7")
