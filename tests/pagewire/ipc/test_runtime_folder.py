"""The runtime folder: private, removed at the end; stale ones are recognized by their lock."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from pagewire.errors import StartupError
from pagewire.ipc.runtime_folder import runtime_folder


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.ipc.runtime_folder._base", lambda: tmp_path)


def test_it_is_private_and_removed_with_its_content():
    with runtime_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "socket").touch()
    assert not folder.exists()


def test_a_locked_folder_stays_and_a_stale_one_is_removed(tmp_path: Path):
    dead = tmp_path / "pagewire-serve-dead"
    dead.mkdir()
    (dead / "lock").write_text("locked\n")
    (dead / "frontends.ipc").touch()
    with runtime_folder() as first, runtime_folder() as second:
        assert first.exists() and second.exists() and first != second
        assert not dead.exists()


def test_a_folder_in_the_making_stays(tmp_path: Path):
    """Between mkdtemp() and flock() a folder looks stale; only its age tells."""
    young, unmarked, old = (tmp_path / f"pagewire-serve-{name}" for name in ("young", "unmarked", "old"))
    for folder in (young, unmarked, old):
        folder.mkdir()
    (unmarked / "lock").touch()
    os.utime(old, (0, 0))
    with runtime_folder():
        assert young.exists() and unmarked.exists() and not old.exists()


def test_a_full_or_forbidden_disk_is_a_startup_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def mkdtemp(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    words = f"cannot make the runtime folder: {tmp_path}: No space left"
    with pytest.raises(StartupError, match=words), runtime_folder():
        pass
