"""What an engine leaves behind when it dies, and what the next one makes of it."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.quarantine.blame import Span, Suspect
from engine_core.quarantine.crash_journal import CrashJournal, journal_path, next_journal, open_journal
from engine_core.step.plan import Plan
from tests.patience import PATIENCE_S

ROWS = 4


Entries = dict[int, tuple[int, int]]
"""Row -> first token that a step computes in it, and how many."""


def after(memory: bytearray) -> CrashJournal:
    """The journal of the next life."""
    return CrashJournal(next_journal(bytes(memory), ROWS))


def write(journal: CrashJournal, step: int, entries: Entries) -> None:
    starts, counts = ([entry[i] for entry in entries.values()] for i in (0, 1))
    journal.write_step(Plan(step=step, rows=[*entries], starts=starts, counts=counts))


def journal_of(memory: bytearray, *keys: int) -> CrashJournal:
    """A journal whose first rows are held by requests with these keys."""
    journal = CrashJournal(memory)
    for row, key in enumerate(keys):
        journal.assign_row(row, key)
    return journal


def test_requests_of_the_last_steps_are_suspects():
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11, 12)
    write(journal, 1, {0: (0, 40), 1: (0, 7)})
    write(journal, 2, {0: (40, 1)})
    journal.clear_rows([1], 12)
    journal.assign_row(2, 13)  # its step is not submitted any more
    assert after(memory).suspects == {11: Suspect(Span(0, 41), 1, 1)}


@pytest.mark.parametrize(
    ("steps", "span"),
    [
        ([(700, 100)], Span(700, 800)),
        ([(700, 100), (800, 100)], Span(700, 900)),
        ([(700, 100), (800, 100), (900, 1)], Span(800, 901)),
        ([(900, 1), (901, 1), (902, 1)], Span(901, 903)),
        ([(900, 4), (902, 4)], Span(900, 906)),  # two of four sampled tokens were taken
        ([(900, 1), (901, 4)], Span(900, 905)),
    ],
)
def test_the_tokens_of_the_last_two_steps(steps: list[tuple[int, int]], span: Span):
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11)
    for step, entry in enumerate(steps, start=6):
        write(journal, step, {0: entry})
    assert after(memory).suspects[11].span == span


def test_a_row_has_another_request_in_each_step():
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11)
    write(journal, 1, {0: (30, 1)})
    journal.assign_row(0, 12)
    write(journal, 2, {0: (0, 9)})
    assert {key: each.span for key, each in after(memory).suspects.items()} == {
        11: Span(30, 31),
        12: Span(0, 9),
    }


def test_the_sequences_of_a_request_are_one():
    memory = next_journal(b"", ROWS)
    write(journal_of(memory, 11, 11, 12), 1, {2: (3, 1), 0: (30, 1), 1: (28, 2)})
    assert after(memory).suspects[11].span == Span(28, 31)


def test_a_step_that_is_half_written_does_not_count():
    """The step two before it is over, and is gone."""
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11)
    for step in (1, 2):
        write(journal, step, {0: (30 + step, 1)})
    with pytest.raises(OverflowError):
        write(journal, 3, {0: (33, -1)})
    assert after(memory).suspects[11].span == Span(32, 33)


def test_tallies_live_on():
    memory = next_journal(b"", ROWS)
    write(journal_of(memory, 11), 1, {0: (0, 5)})
    for death in range(1, 5):
        memory = next_journal(bytes(memory), ROWS)
        journal = CrashJournal(memory)
        assert journal.num_deaths == death
        assert journal.suspects[11].strikes == death - 1
        journal.assign_row(3, 11)
        write(journal, 2, {3: (0, 5)})
    assert after(memory).suspects[11].strikes == 4


def test_a_cleared_suspect_is_none_in_the_next_life():
    memory = next_journal(b"", ROWS)
    write(journal_of(memory, 11, 12, 13), 1, {0: (0, 5), 1: (0, 5), 2: (0, 5)})
    memory = next_journal(bytes(memory), ROWS)
    journal = CrashJournal(memory)
    journal.clear_suspect(12)
    journal.change_suspect(13, Suspect(Span(0, 5), 1, 1, 2))
    found = after(memory)
    assert found.suspects.keys() == {11, 13} and found.suspects[13].strikes == 2
    assert found.num_deaths == 1  # no request was in a step when this engine ended


def test_what_is_done_after_death_is_not_found():
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11)
    write(journal, 1, {0: (0, 5)})
    journal.leave()
    journal.clear_rows([0], 11)
    assert after(memory).suspects.keys() == {11}


def test_more_suspects_than_slots():
    """The latest are kept."""
    memory = next_journal(b"", 100)
    journal = journal_of(memory, *range(1, 101))
    assert journal.num_rows == 100
    write(journal, 1, {row: (0, 5) for row in range(100)})
    assert len(after(memory).suspects) == 64


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_anything_may_lie_there(past: bytes):
    assert next_journal(past, ROWS) == next_journal(b"", ROWS)


@settings(deadline=None)
@given(data=st.data())
def test_a_journal_may_be_damaged(data: st.DataObject):
    memory = next_journal(b"", ROWS)
    journal = journal_of(memory, 11, 12)
    for step in (1, 2):
        write(journal, step, {0: (step, 1), 1: (step, 3)})
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
from engine_core.quarantine.crash_journal import open_journal
from engine_core.step.plan import Plan
journal = open_journal(Path(sys.argv[1]), 4)
journal.assign_row(2, 11)
journal.write_step(Plan(step=3, rows=[2], starts=[0], counts=[5]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_outlives_a_process_that_is_killed(tmp_path: Path):
    path = tmp_path / "notes"
    subprocess.run([sys.executable, "-c", DIES, str(path)], check=False, timeout=PATIENCE_S)
    assert path.stat().st_mode & 0o777 == 0o600
    journal = open_journal(path, ROWS)
    assert journal.suspects.keys() == {11}
    assert open_journal(path, ROWS).suspects.keys() == {11}  # it was read and replaced in one step
    assert os.listdir(tmp_path) == ["notes"]


def test_no_file_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "notes").mkdir()
    journal = open_journal(tmp_path / "notes", ROWS)
    write(journal, 1, {0: (0, 5)})
    assert "no crash journal is kept" in caplog.text


def test_a_file_that_is_too_big_is_not_read(tmp_path: Path):
    path = tmp_path / "notes"
    with path.open("wb") as file:
        file.truncate(1 << 33)
    assert not open_journal(path, ROWS).suspects
    assert path.stat().st_size < struct.calcsize("Q") * 1000
