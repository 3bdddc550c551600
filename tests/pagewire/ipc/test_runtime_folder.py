"""A service's folder: private, gone at the end, and stale ones are found by their lock."""

import os
import stat
from pathlib import Path

import pytest

from pagewire.ipc.runtime_folder import runtime_folder


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.ipc.runtime_folder._base", lambda: tmp_path)


def test_it_is_private_and_goes_with_its_content():
    with runtime_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "socket").touch()
    assert not folder.exists()


def test_a_living_one_is_left_alone_and_a_dead_one_removed(tmp_path: Path):
    dead = tmp_path / "pagewire-serve-dead"
    dead.mkdir()
    (dead / "lock").write_text("locked\n")
    (dead / "frontends.ipc").touch()
    with runtime_folder() as first, runtime_folder() as second:
        assert first.exists() and second.exists() and first != second
        assert not dead.exists()


def test_one_that_is_being_made_is_left_alone(tmp_path: Path):
    """Between mkdtemp() and flock() a folder looks dead; only age tells."""
    young, unmarked, old = (tmp_path / f"pagewire-serve-{name}" for name in ("young", "unmarked", "old"))
    for folder in (young, unmarked, old):
        folder.mkdir()
    (unmarked / "lock").touch()
    os.utime(old, (0, 0))
    with runtime_folder():
        assert young.exists() and unmarked.exists() and not old.exists()
