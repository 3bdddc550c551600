"""Where the cores are, and what happens to a file, or a name, that says it."""

import socket
import threading
from pathlib import Path

import pytest

from frontend.engine import core_list
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


def test_all_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Which may change, or be gone for a while; the log says that once."""
    monkeypatch.setattr(core_list, "LOOK_UP_S", 0.0)
    known: dict[str, list[str]] = {"engines": ["10.0.0.2", "10.0.0.1", "10.0.0.2"]}
    answers = threading.Event()

    def look_up(name: str, *_: object) -> list[tuple[object, ...]]:
        answers.wait()
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (host, 0)) for host in known[name]]

    monkeypatch.setattr(core_list.socket, "getaddrinfo", look_up)
    addresses = GivenAddresses(["tcp://engines:7101", "tcp://10.0.0.9:1"])
    (name, _) = addresses._sources

    def look() -> list[str]:
        """Twice, with a lookup in between that has begun in the first one."""
        addresses.look()
        name._lookup.join()  # type: ignore[attr-defined]
        found = addresses.look()
        name._lookup.join()  # type: ignore[attr-defined]
        return found

    assert addresses.look() == ["tcp://10.0.0.9:1"], "nothing waits for a lookup"
    answers.set()
    assert look() == ["tcp://10.0.0.1:7101", "tcp://10.0.0.2:7101", "tcp://10.0.0.9:1"]
    known["engines"] = ["10.0.0.3"]
    assert look() == ["tcp://10.0.0.3:7101", "tcp://10.0.0.9:1"]
    del known["engines"]
    assert look() == ["tcp://10.0.0.3:7101", "tcp://10.0.0.9:1"]
    assert [record.getMessage() for record in caplog.records] == [
        "--engine engines has no addresses, the last ones stay valid: Name or service not known"
    ]
    known["engines"] = ["10.0.0.4"]
    assert look() == ["tcp://10.0.0.4:7101", "tcp://10.0.0.9:1"]


@pytest.mark.parametrize("given", ["tcp://10.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "ipc:///a.b/c"])
def test_what_is_no_name(given: str):
    assert GivenAddresses([given]).look() == [given]


def test_a_name_without_a_port():
    with pytest.raises(StartupError, match="tcp://engines"):
        GivenAddresses(["tcp://engines"])
