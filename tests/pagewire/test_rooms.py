"""Where the rooms are found, in the repository and in an installed wheel."""

import sys
from pathlib import Path

import pytest

from pagewire import rooms

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def import_path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    path = ["elsewhere"]
    monkeypatch.setattr(sys, "path", path)
    return path


def test_in_the_repository_they_are_at_the_top(import_path: list[str]):
    rooms.make_importable()
    rooms.make_importable()
    assert import_path[0] == str(ROOT) and import_path[-1] == "elsewhere"
    assert import_path[1:-1] == [str(path) for path in sorted(ROOT.glob("packages/*/src"))]


def test_in_a_wheel_they_are_inside_the_package(
    import_path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "_rooms").mkdir()
    monkeypatch.setattr(rooms, "_PACKAGE", tmp_path)
    rooms.make_importable()
    assert import_path[0] == str(tmp_path / "_rooms")
