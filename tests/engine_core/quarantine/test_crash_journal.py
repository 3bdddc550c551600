"""What an engine leaves behind, and what the next one makes of it."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.quarantine.blame import Span, Suspect
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.quarantine.crash_journal_file import journal_path, open_journal

ROWS = 4


def after(memory: bytearray) -> CrashJournal:
    """The page of the next life."""
    return CrashJournal(next_journal(bytes(memory), ROWS))


def test_who_runs_and_who_does_not():
    memory = next_journal(b"", ROWS)
    page = CrashJournal(memory)
    page.write_member(0, 11, 1, 40, 40)
    page.write_member(1, 12, 1, 7, 7)
    page.write_step(1)
    page.write_step(2)
    page.clear_member(1)
    page.write_member(2, 13, 3, 9, 9)  # its step was not submitted any more
    assert after(memory).suspects == {11: Suspect(Span(0, 41), 1, 1)}


@pytest.mark.parametrize(
    ("steps", "span"), [(0, Span(700, 900)), (1, Span(700, 901)), (2, Span(900, 902)), (50, Span(948, 950))]
)
def test_the_tokens_of_the_last_two_steps(steps: int, span: Span):
    """The end of a prompt, then one token a step."""
    memory = next_journal(b"", ROWS)
    page = CrashJournal(memory)
    page.write_member(0, 11, 6, 900, 100)
    page.write_step(6 + steps)
    assert after(memory).suspects[11].span == span


def test_tallies_live_on():
    memory = next_journal(b"", ROWS)
    CrashJournal(memory).write_member(0, 11, 0, 5, 5)
    for death in range(1, 5):
        memory = next_journal(bytes(memory), ROWS)
        page = CrashJournal(memory)
        assert page.num_deaths == death
        assert page.suspects[11].strikes == death - 1
        page.write_member(3, 11, 2, 5, 5)
        page.write_step(2)
    assert after(memory).suspects[11].strikes == 4


def test_who_is_acquitted_is_none_any_more():
    memory = next_journal(b"", ROWS)
    page = CrashJournal(memory)
    for place in range(3):
        page.write_member(place, 11 + place, 0, 5, 5)
    memory = next_journal(bytes(memory), ROWS)
    page = CrashJournal(memory)
    page.clear_suspect(12)
    page.change_suspect(13, Suspect(Span(0, 5), 1, 1, 2))
    found = after(memory)
    assert found.suspects.keys() == {11, 13} and found.suspects[13].strikes == 2
    assert found.num_deaths == 1  # nobody was in a step when this one ended


def test_what_is_done_after_death_is_not_found():
    memory = next_journal(b"", ROWS)
    page = CrashJournal(memory)
    page.write_member(0, 11, 0, 5, 5)
    page.leave()
    page.clear_member(0)
    assert after(memory).suspects.keys() == {11}


def test_more_suspects_than_places():
    """The latest are kept."""
    memory = next_journal(b"", 100)
    page = CrashJournal(memory)
    for place in range(page.num_members):
        page.write_member(place, 1 + place, 0, 5, 5)
    assert page.num_members == 300
    assert len(after(memory).suspects) == 64


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_anything_may_lie_there(past: bytes):
    assert next_journal(past, ROWS) == next_journal(b"", ROWS)


@settings(deadline=None)
@given(data=st.data())
def test_a_page_may_be_damaged(data: st.DataObject):
    memory = next_journal(b"", ROWS)
    places = st.integers(0, len(memory) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=20)):
        memory[place] = value
    after(memory)


def test_a_file_for_each_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert journal_path("ipc:///folder/frontends.ipc") == Path("/folder/frontends.ipc.notes")
    others = {journal_path(f"tcp://127.0.0.1:{port}") for port in (1, 2)}
    assert len(others) == 2 and {path.parent for path in others} == {tmp_path / "pagewire"}


DIES = """
import os, signal, sys
from pathlib import Path
from engine_core.quarantine.crash_journal_file import open_journal
page = open_journal(Path(sys.argv[1]), 4)
page.write_member(0, 11, 3, 5, 5)
page.write_step(3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_outlives_a_process_that_is_killed(tmp_path: Path):
    path = tmp_path / "notes"
    subprocess.run([sys.executable, "-c", DIES, str(path)], check=False, timeout=60)
    assert path.stat().st_mode & 0o777 == 0o600
    page = open_journal(path, ROWS)
    assert page.suspects.keys() == {11}
    assert open_journal(path, ROWS).suspects.keys() == {11}  # it was read and replaced in one step
    assert os.listdir(tmp_path) == ["notes"]


def test_no_file_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "notes").mkdir()
    page = open_journal(tmp_path / "notes", ROWS)
    page.write_member(0, 11, 0, 5, 5)
    assert "no notes are kept" in caplog.text


def test_a_file_that_is_too_big_is_not_read(tmp_path: Path):
    path = tmp_path / "notes"
    with path.open("wb") as file:
        file.truncate(1 << 33)
    assert not open_journal(path, ROWS).suspects
    assert path.stat().st_size < struct.calcsize("Q") * 1000
