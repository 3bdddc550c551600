"""A scheduler that is told the same decides the same; one that does not is found, at the right step."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings

from engine_core.recording.file import RecordingReader, open_recording
from engine_core.recording.recorder import RecordedScheduler
from engine_core.recording.replay import Replay
from engine_core.scheduler import Scheduler
from tests.engine_core.test_scheduler_walk import SchedulerWalk


class RecordedWalk(SchedulerWalk):
    """A random walk that is recorded, and replayed in the end."""

    searches = False

    def make_scheduler(self, **settings: Any) -> Scheduler:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "recording"
        self.recording = open_recording(self.path)
        return RecordedScheduler(self.recording, **settings)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        with self.folder:
            try:
                super().teardown()
            finally:
                self.recording.close()
            recording = RecordingReader(self.path)
            outcome = Replay(recording).run()
            assert outcome.difference is None
            assert outcome.num_plans == self.scheduler.step
            assert not recording.incomplete


RecordedWalk.TestCase.settings = settings(SchedulerWalk.TestCase.settings, max_examples=100)
TestRecordedWalk = RecordedWalk.TestCase
