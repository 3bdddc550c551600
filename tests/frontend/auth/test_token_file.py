"""The token file, and its changes while the server runs."""

import logging
import os
from pathlib import Path

import pytest

from frontend.auth.tokens import TokenFile, digest_of, new_token
from frontend.errors import Unauthenticated
from pagewire.errors import StartupError
from pagewire.host.file_watch import MAX_BYTES

ALICE, BOB = new_token(), new_token()


def entry(token: str, tenant: str) -> str:
    return f"- {{sha256: '{digest_of(token).hex()}', tenant: {tenant}}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + entry(ALICE, "alice"))
    return path


def knows(file: TokenFile, token: str) -> bool:
    try:
        file.table.find(token, 0.0)
    except Unauthenticated:
        return False
    return True


def test_a_change_counts_after_a_look(path):
    file = TokenFile(str(path))
    table = file.table
    file.refresh()
    assert file.table is table and knows(file, ALICE) and not knows(file, BOB)
    path.write_text(path.read_text() + entry(BOB, "bob"))
    file.refresh()
    assert knows(file, ALICE) and knows(file, BOB)
    path.write_text("tokens: []")
    file.refresh()
    assert not knows(file, ALICE) and not knows(file, BOB)


def test_a_file_of_the_same_size_that_takes_its_place(path, tmp_path):
    file = TokenFile(str(path))
    other = tmp_path / "other"
    other.write_text("tokens:\n" + entry(BOB, "alice"))
    assert other.stat().st_size == path.stat().st_size
    other.replace(path)
    file.refresh()
    assert knows(file, BOB) and not knows(file, ALICE)


def test_what_cannot_be_read_whole_does_not_hang(path, caplog):
    """A FIFO without a writer blocked the thread for ever, and a huge file took minutes."""
    file = TokenFile(str(path))
    for make in (lambda: os.mkfifo(path), lambda: path.touch() or os.truncate(path, MAX_BYTES + 1)):
        path.unlink()
        make()
        file.refresh()
        assert knows(file, ALICE)
    assert "not a regular file" in caplog.messages[0] and "more than 16 MiB" in caplog.messages[1]


def test_a_file_that_others_may_write_is_warned_of(path, caplog):
    path.chmod(0o666)
    TokenFile(str(path))
    assert "its mode is 0666; chown it, or chmod go-w" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_warned_of(path, caplog):
    os.chown(path, 65534, -1)
    TokenFile(str(path))
    assert "may write to --auth-file, and so admit themselves: it belongs to user 65534" in caplog.text


@pytest.mark.parametrize("broken", [b"", b"tokens: [", b"\xff", b"tokens: {}", None])
def test_a_broken_file_changes_nothing_and_says_so_once(path, broken, caplog):
    file = TokenFile(str(path))
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken)
    with caplog.at_level(logging.ERROR):
        file.refresh()
        file.refresh()
    assert knows(file, ALICE)
    assert len(caplog.messages) == 1 and "--auth-file" in caplog.messages[0]
    path.write_text("tokens:\n" + entry(BOB, "bob"))
    file.refresh()
    assert knows(file, BOB) and not knows(file, ALICE)


@pytest.mark.parametrize("broken", ["gone", "a folder", "empty", "not UTF-8"])
def test_without_a_file_that_can_be_read_nothing_starts(path, broken):
    path.unlink()
    if broken == "a folder":
        path.mkdir()
    elif broken != "gone":
        path.write_bytes(b"" if broken == "empty" else b"\xff")
    with pytest.raises(StartupError) as caught:
        TokenFile(str(path))
    assert "--auth-file" in caught.value.what and caught.value.why and "token new" in caught.value.todo
