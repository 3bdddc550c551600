"""A core's life, recorded and told again: the plans must be the same."""

from pathlib import Path
from tempfile import TemporaryDirectory

from engine_core.recording.file import open_recording
from pagewire_replay.reader import RecordingReader
from pagewire_replay.replay import Replay


class RecordedLife:
    """A recording in a folder of its own."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="pagewire-recording-")
        self._path = Path(self._folder.name) / "life"
        self.writer = open_recording(self._path)

    def close(self) -> None:
        """The life is over."""
        self.writer.close()

    def check(self) -> int:
        """Call it after close(). Plans that are the same; raises AssertionError when one differs."""
        outcome = Replay(RecordingReader(self._path)).run()
        assert outcome.difference is None, f"a replay differs: {outcome.difference}"
        return outcome.num_plans

    def discard(self) -> None:
        """Removes the file."""
        self._folder.cleanup()
