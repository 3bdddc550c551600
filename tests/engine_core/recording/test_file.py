"""Recordings on disk: which users may read them, and what is left of them when things go wrong."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from engine_core.recording import file
from engine_core.recording.file import RecordingWriter, open_recording
from pagewire.errors import StartupError
from pagewire_replay.reader import BadRecording, RecordingReader


def write(path: Path, numbers: range) -> RecordingWriter:
    """A recording of one abort for each number."""
    writer = open_recording(path)
    for number in numbers:
        writer.add().event.number = number
        writer.flush_if_due(number / 50)
    return writer


def read(path: Path) -> tuple[list[int], str]:
    recording = RecordingReader(path)
    return [call.event.number for call in recording], recording.incomplete


def test_what_is_written_is_read(tmp_path: Path):
    write(tmp_path / "r", range(1000)).close()
    assert read(tmp_path / "r") == (list(range(1000)), "")


def test_only_the_owner_may_read(tmp_path: Path):
    writer = write(tmp_path / "r", range(1))
    writer.close()
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o600


def test_no_file_is_overwritten(tmp_path: Path):
    """A restarted core must not destroy the recording of the core that died."""
    for numbers in (range(3), range(5)):
        write(tmp_path / "r", numbers).close()
    assert read(tmp_path / "r")[0] == [0, 1, 2]
    assert read(tmp_path / "r.1")[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["missing/r", "link"])
def test_start_up_fails_where_no_file_can_be_written(tmp_path: Path, name: str):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "r")
    if name == "link":  # it exists, and so is left alone
        open_recording(tmp_path / name).close()
        assert (tmp_path / "link.1").is_file()
        return
    with pytest.raises(StartupError) as caught:
        open_recording(tmp_path / name)
    assert "missing/r: No such file or directory" in caught.value.why and "--record" in caught.value.todo


@pytest.mark.parametrize("cut", [1, 5, 12, 40])
def test_a_tail_that_was_cut_off_is_reported(tmp_path: Path, cut: int):
    """The process was killed while writing."""
    write(tmp_path / "r", range(100)).close()
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole[:-cut])
    numbers, incomplete = read(tmp_path / "r")
    assert numbers == list(range(len(numbers))) and 0 < len(numbers) < 100
    assert "ends within the chunk at byte" in incomplete


def test_every_changed_byte_is_detected(tmp_path: Path):
    write(tmp_path / "r", range(4)).close()
    whole = (tmp_path / "r").read_bytes()
    for at in range(len(file.MAGIC), len(whole)):
        (tmp_path / "r").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        numbers, incomplete = read(tmp_path / "r")
        assert incomplete and numbers == list(range(len(numbers)))


def test_an_absurd_length_is_not_trusted(tmp_path: Path):
    (tmp_path / "r").write_bytes(file.MAGIC + b"\xff" * 8)
    assert read(tmp_path / "r") == ([], "the chunk at byte 8 is damaged")


@pytest.mark.parametrize("content", [b"", b"pwrec", b"%PDF-1.7 something"])
def test_other_files_are_no_recordings(tmp_path: Path, content: bytes):
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(BadRecording, match="is not a recording"):
        RecordingReader(tmp_path / "r")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(BadRecording, match="cannot read .*/r: No such file"):
        RecordingReader(tmp_path / "r")


def test_a_full_disk_ends_the_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The step loop continues, and what was written can be read."""
    real, left = os.write, [200]

    def write_until_full(fd: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[: left[0]]
        left[0] -= len(data)
        return real(fd, data)

    monkeypatch.setattr(file.os, "write", write_until_full)
    with caplog.at_level(logging.WARNING):
        writer = write(tmp_path / "r", range(3000))
        writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"the recording to {tmp_path / 'r'} ends here: No space left on device; serving goes on"
    ]
    numbers, incomplete = read(tmp_path / "r")
    assert numbers == list(range(len(numbers))) and "ends within" in incomplete


def test_a_disk_that_hangs_does_not_block_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """What cannot be written is dropped, and memory does not grow."""
    reading, writing = os.pipe()  # a pipe without a reader stands for a disk that hangs
    monkeypatch.setattr(file, "_MAX_QUEUED_CALLS", 10_000)
    os.set_blocking(reading, False)
    writer = RecordingWriter(writing, tmp_path / "r")
    with caplog.at_level(logging.WARNING):
        for number in range(30_000):
            writer.add().start.version = os.urandom(8).hex()
            writer.flush_if_due(float(number))
    assert "the disk is too slow" in caplog.text and not writer.is_open
    os.close(reading)  # the thread's write fails
    writer.close()
