"""Folders of machine code that nothing uses are removed after a while, and no others."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from kernels.cpu.compiler.cache import REMOVED, UNUSED_S, hold, remove_unused  # noqa: E402

HOLD = """
import sys
from pathlib import Path
from kernels.cpu.compiler.cache import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def folder(parent: Path, name: str, unused: float) -> Path:
    """With a file, not used for so many seconds."""
    made = parent / name
    made.mkdir()
    (made / "kernel.o").write_bytes(b"code")
    os.utime(made, (time.time() - unused,) * 2)
    return made


def test_what_is_old_goes(tmp_path: Path) -> None:
    """Also what a process that was killed has left. Other things that lie there stay."""
    own = folder(tmp_path, "kernels-own", 2 * UNUSED_S)
    young = folder(tmp_path, "kernels-young", UNUSED_S - 1000)
    others = folder(tmp_path, "models", 2 * UNUSED_S)
    folder(tmp_path, "kernels-old", UNUSED_S + 1000)
    folder(tmp_path, f"{REMOVED}half", 0)
    remove_unused(own)
    assert set(tmp_path.iterdir()) == {own, young, others}
    remove_unused(own, time.time() + UNUSED_S)
    assert set(tmp_path.iterdir()) == {own, others}


def test_what_a_process_uses_stays(tmp_path: Path) -> None:
    """However long it has run. When it ends, the folder counts from its start."""
    used = folder(tmp_path, "kernels-used", 2 * UNUSED_S)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(used)], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"held\n"
        assert time.time() - used.stat().st_mtime < UNUSED_S
        remove_unused(tmp_path / "kernels-own", time.time() + 2 * UNUSED_S)
        assert (used / "kernel.o").exists()
        process.communicate(b"\n")
    remove_unused(tmp_path / "kernels-own", time.time() + 2 * UNUSED_S)
    assert not used.exists()


def test_a_folder_that_is_removed_while_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made anew, and that one is held."""
    taken, flock, removed = tmp_path / "kernels-taken", fcntl.flock, []

    def remove_once(opened: int, how: int) -> None:
        if not removed:
            removed.append(taken.rmdir())
        flock(opened, how)

    monkeypatch.setattr(fcntl, "flock", remove_once)
    hold(taken)
    assert removed and taken.is_dir()
    remove_unused(tmp_path / "kernels-own", time.time() + 2 * UNUSED_S)
    assert taken.is_dir()
