"""A recording on disk: opened before the model is loaded, written beside the step loop.

The step loop fills in calls (protobuf objects, in place); a thread compresses and writes them, chunk by
chunk. An error there ends the recording with one warning; serving goes on. recording.proto specifies the
file.
"""

import logging
import os
import queue
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from pagewire.errors import StartupError
from pagewire.internal.v1.recording_pb2 import RecordedCall, RecordedChunk

log = logging.getLogger(__name__)

MAGIC = b"pwrecord"
FORMAT = 3
HEADER = Struct("<II")  # length and CRC-32 of what follows
_CHUNK_CALLS = 512
_CHUNK_S = 1.0
_MAX_QUEUED_CALLS = 1 << 17
"""A disk that falls this far behind (a minute of 1,000 steps per second) counts as failed."""
_MAX_NAMES = 1000


def open_recording(path: Path) -> "RecordingWriter":
    """Creates the file, for this user only. Raises StartupError.

    An existing file is never overwritten (a core that is restarted would destroy what shows why it died): the
    recording goes to FILE.1, FILE.2 ... then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    for number in range(_MAX_NAMES):
        name = path if not number else path.with_name(f"{path.name}.{number}")
        try:
            fd = os.open(name, flags, 0o600)
            os.write(fd, MAGIC)
        except FileExistsError:
            continue
        except OSError as error:
            raise StartupError(
                "cannot record", f"{name}: {error.strerror}", "choose another file for --record"
            ) from error
        log.info("recording to %s", name)
        return RecordingWriter(fd, name)
    raise StartupError("cannot record", f"{path} and its successors exist", "move them away")


class RecordingWriter:
    """Takes calls from the step loop. `is_open` is False once the recording has ended, for any reason."""

    def __init__(self, fd: int, path: Path) -> None:
        """Takes ownership of the descriptor."""
        self.is_open = True
        self.path = path
        self.on_close: Callable[[], None] | None = None
        """Called by close(), to add the last calls."""
        self._fd = fd
        self._chunk = RecordedChunk()
        self._flush_at: float | None = None
        self._queue: queue.SimpleQueue[RecordedChunk | None] = queue.SimpleQueue()
        self._num_queued = self._num_written = 0  # calls, since the start
        self._thread = threading.Thread(target=self._write_chunks, name="recording", daemon=True)
        self._thread.start()

    def add(self) -> RecordedCall:
        """Returns the next call, to be filled in at once."""
        return self._chunk.calls.add()

    def flush_if_due(self, now: float) -> None:
        """Hands a chunk to the thread when it is large enough or a second old. Never waits."""
        if self._flush_at is None:
            self._flush_at = now + _CHUNK_S
        if now >= self._flush_at or len(self._chunk.calls) >= _CHUNK_CALLS:
            self._flush_at = None
            self._flush()

    def close(self) -> None:
        """Writes the rest and closes the file."""
        if self.on_close is not None:
            self.on_close()
        if self._chunk.calls:
            self._flush()
        self._queue.put(None)
        self._thread.join()
        self.is_open = False
        os.close(self._fd)

    def _flush(self) -> None:
        chunk, self._chunk = self._chunk, RecordedChunk()
        if self.is_open:
            self._num_queued += len(chunk.calls)
            self._queue.put(chunk)
            if self._num_queued - self._num_written > _MAX_QUEUED_CALLS:
                self._give_up("the disk is too slow")

    def _write_chunks(self) -> None:
        while (chunk := self._queue.get()) is not None:
            if self.is_open:
                try:
                    _write_chunk(self._fd, chunk)
                except OSError as error:
                    self._give_up(error.strerror)
            self._num_written += len(chunk.calls)

    def _give_up(self, why: str | None) -> None:
        self.is_open = False
        log.warning("the recording to %s ends here: %s; serving goes on", self.path, why)


def _write_chunk(fd: int, chunk: RecordedChunk) -> None:
    payload = zlib.compress(chunk.SerializeToString(), 1)
    rest = memoryview(HEADER.pack(len(payload), zlib.crc32(payload)) + payload)
    while rest:
        rest = rest[os.write(fd, rest) :]
