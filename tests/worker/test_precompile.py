"""Kernels are made ready beside the worker; a failure there is nobody's end."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker import precompile

pytest.importorskip("llvmlite")


class Failed:
    """A process that has ended, with an error."""

    def wait(self) -> int:
        return 1


def tell(what: str, fraction: float) -> None:
    assert what == "compiling kernels"


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and which groups a process is started for; it ends at once, with an error."""
    groups: list[str] = []

    def start(missing: list[str]) -> Failed:
        groups.extend(missing)
        return Failed()

    monkeypatch.setattr("kernels.cpu.compiler.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("kernels.cpu.compiler.is_cached", lambda: True)
    monkeypatch.setattr(precompile, "_start", start)
    monkeypatch.setattr(precompile, "why_not", lambda: None)
    return groups


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    groups: list[str] = []
    monkeypatch.setattr(precompile, "import_group", groups.append)
    return groups


def test_the_first_start_compiles_and_later_ones_do_not(starts: list[str], imported: list[str]) -> None:
    """What failed is tried again at the next start."""
    kernels = precompile.precompile()
    assert starts == ["sampler", "model"]
    kernels.begin()
    kernels.wait(tell)
    assert imported == ["sampler", "model"]  # here, then: it is not on disk
    precompile.main(["sampler"])
    precompile.precompile()
    assert starts == ["sampler", "model", "model"]
    precompile.main(["model"])
    assert precompile.precompile() is not None and len(starts) == 3


def test_what_cannot_run_here_is_not_compiled(starts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompile, "why_not", lambda: "the CPU lacks AVX512-BF16")
    precompile.precompile()
    assert starts == ["sampler"]
    monkeypatch.setattr("kernels.cpu.compiler.is_cached", lambda: False)  # nowhere to leave it
    precompile.precompile()
    assert starts == ["sampler"]


def test_a_failure_is_left_to_who_uses_them(starts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> None:
        raise ImportError(group)

    monkeypatch.setattr(precompile, "import_group", fail)
    kernels = precompile.precompile()
    kernels.begin()
    kernels.wait(tell)


def test_waiting_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch, imported: list[str]) -> None:
    """Else the engine core would take it for hung. The child waits for the second one."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(precompile, "LOOK_S", 0.01)
    told: list[float] = []

    def report(what: str, fraction: float) -> None:
        told.append(fraction)
        if len(told) == 3:
            child.communicate(b"\n")

    kernels = precompile.Precompiled(["sampler"], child)
    kernels.begin()
    kernels.wait(report)
    assert len(told) >= 3 and told == sorted(set(told)) and imported == ["sampler"]


def test_groups_are_all_files() -> None:
    """Each file is in one of the two; the sampler's by name."""
    names = [path.stem for path in precompile.FOLDER.glob("*.py")]
    assert any(name.startswith(precompile.SAMPLER_FILES) for name in names) and "linear" in names
    precompile.import_group("sampler")
    assert "kernels.cpu.sampling_choose" in sys.modules
