"""Errors that are shown to users."""

from pathlib import Path

import pytest

from pagewire import errors
from pagewire.errors import StartupError, install_hint


def test_parts_are_single_printable_lines():
    """They may quote a file of a stranger."""
    error = StartupError("a\nb", "\x1b[31mred", "x" * 2000)
    assert (error.what, error.why) == ("a\\nb", "\\x1b[31mred")
    assert len(error.todo) < 1010 and error.todo.endswith("...")
    assert str(error) == "a\\nb: \\x1b[31mred"


def test_empty_parts_are_left_out():
    assert str(StartupError("cannot start")) == "cannot start"


def test_the_hint_names_an_installation_that_works():
    assert install_hint("serve") == "in pagewire's source tree: pip install '.[serve]'"


def test_a_wheel_names_what_its_extra_requires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """And no project of an index, which may belong to others."""
    monkeypatch.setattr(errors, "_SOURCES", tmp_path / "pyproject.toml")
    hint = install_hint("serve")
    assert hint.startswith("pip install ") and "pagewire" not in hint
    assert "'h11<0.17,>=0.16'" in hint and "'torch<3,>=2.11'" in hint  # of an extra in an extra, too
