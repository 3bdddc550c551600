"""Where the cores are, and what happens to a file that says it."""

from pathlib import Path

import pytest

from frontend.engine.core_list import GivenAddresses
from pagewire.errors import StartupError


def test_addresses_and_files_in_their_order_each_once(tmp_path: Path):
    file = tmp_path / "engines"
    file.write_text("b\n  c  \n# d\n\n a\n")
    assert GivenAddresses(["a", f"@{file}", "e", "b"]).look() == ["a", "b", "c", "e"]


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "engines"
    file.write_text("a\n")
    addresses = GivenAddresses([f"@{file}"])
    assert addresses.look() == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", None)  # it would be an error to call it
        assert addresses.look() == ["a"]
    file.write_text("a\nbb\n")
    assert addresses.look() == ["a", "bb"]


def test_a_file_that_cannot_be_read_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The service goes on; the log says it once."""
    file = tmp_path / "engines"
    file.write_text("a\n")
    addresses = GivenAddresses([f"@{file}"])
    addresses.look()
    file.unlink()
    assert addresses.look() == addresses.look() == ["a"]
    assert len(caplog.records) == 1
    caplog.clear()
    file.write_bytes(b"\xff\n\n")
    assert addresses.look() == ["a"]
    caplog.clear()
    file.write_text("b\n")
    assert addresses.look() == ["b"] and not caplog.records


def test_a_file_that_was_never_there(tmp_path: Path):
    with pytest.raises(StartupError, match="cannot read the addresses"):
        GivenAddresses([f"@{tmp_path}/nothing"]).look()
