"""`pagewire docs`: prints where the pages are."""

from pathlib import Path

import pytest

from pagewire import cli
from pagewire.cli import docs
from pagewire.errors import StartupError


def test_it_prints_the_path_of_the_first_page(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["docs"]) == 0
    page = Path(capsys.readouterr().out.split()[0])
    assert page.read_text(encoding="utf-8").startswith("# The first half hour")


def test_an_installation_without_pages_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(docs, "FOLDERS", (tmp_path,))
    with pytest.raises(StartupError, match="pagewire-client has none"):
        cli.run(["docs"])
