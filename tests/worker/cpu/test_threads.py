"""How many threads compute, and whether they recover from stragglers."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.config import WorkerConfig
from tests.worker.fakes import initialize
from worker.cpu import threads
from worker.cpu.threads import choose_threads, own_cores, prepare_threads
from worker.load import load
from worker.platforms.cpu import CpuPlatform


def test_as_asked_for():
    assert choose_threads(3, 1 << 40, 8) == 3
    assert choose_threads(3, 1, 8) == 3


def test_small_models_get_one():
    assert choose_threads(0, 1 << 20, 8) == 1
    assert choose_threads(0, 1 << 30, 8) == 8


@pytest.mark.parametrize(
    ("cores", "num_workers", "pinned", "child", "own"),
    [
        (8, 1, True, True, 8),  # no other process runs there
        (8, 2, True, True, 8),  # the others have theirs
        (8, 1, False, True, 7),  # one for frontends and core
        (2, 1, False, True, 2),  # that would be half of them
        (8, 3, False, True, 2),
        (8, 9, False, True, 1),
        (8, 1, False, False, 8),  # a worker that was started by itself, on a host of its own perhaps
        (8, 2, False, False, 4),
    ],
)
def test_workers_of_one_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, num_workers: int, pinned: bool, child: bool, own: int
):
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    monkeypatch.setattr(threads, "is_child", lambda: child)
    assert own_cores(num_workers, pinned) == own


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    prepare_threads()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"]) == ("active", "7")


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("pinned", [False, True])
def test_stragglers_are_recovered_from_on_shared_cores_alone(
    pinned: bool, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    from kernels.cpu.runtime.thread_pool import TEAM

    monkeypatch.setattr(TEAM, "recovers_stragglers", True)
    command = initialize(checkpoint("llama", head_dim=32), dtype="bfloat16", block_size=16)
    executor, _ = load(command, CpuPlatform(WorkerConfig(threads=1, cores="0" if pinned else "")))
    programs = executor.backend.model.programs  # type: ignore[union-attr]
    assert TEAM.recovers_stragglers is not pinned
    assert (programs[True].program.slack == 0) == pinned  # type: ignore[index]
