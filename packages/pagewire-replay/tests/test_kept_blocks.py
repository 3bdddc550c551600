"""Recordings of cores that have adopted a worker: a replay begins with what it held."""

from pathlib import Path

import pytest

from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.recording.file import open_recording
from engine_core.recording.recorder import RecordedScheduler
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.internal.v1.recording_pb2 import RecordedCall
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire_replay.reader import RecordingReader
from pagewire_replay.replay import Replay
from tests.engine_core.fakes import add_request, make
from tests.engine_core.kv_cache.test_kept_cache import SECRET, Lives

ADAPTER = b"d" * 32
SETTINGS = {"num_blocks": 8, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16}


class RecordedLives(Lives):
    """Every life is recorded, in a file of its own."""

    def __init__(self, folder: Path, *, with_tokens: bool, **options: int) -> None:
        super().__init__(options["seed"], ahead=bool(options["ahead"]), checkpoints=options["checkpoints"])
        self._folder, self._with_tokens = folder, with_tokens
        self.paths: list[Path] = []
        self.worker.adapters.add(ADAPTER)

    def _new_request(self) -> AddRequest:
        message = super()._new_request()
        if message.handle % 3 == 0:
            message.adapter.name, message.adapter.digest = "a", ADAPTER
        return message

    def make_scheduler(self, **settings: int) -> Scheduler:
        self.paths.append(self._folder / f"{len(self.paths)}")
        self.recording = open_recording(self.paths[-1])
        return RecordedScheduler(self.recording, with_tokens=self._with_tokens, **settings)

    def replays(self, scheduler: Scheduler) -> bool:
        """Ends the recording, and compares its replay; returns whether the life began with kept blocks."""
        self.recording.close()
        reader = RecordingReader(self.paths[-1])
        outcome = Replay(reader).run()
        assert outcome.difference is None and outcome.num_plans == scheduler.step
        return any(call.event.name == "track_cache" for call in reader)


@pytest.mark.parametrize("checkpoints", [0, 3])
@pytest.mark.parametrize("with_tokens", [False, True])
def test_lives_of_an_adopted_worker_are_replayed(tmp_path: Path, with_tokens: bool, checkpoints: int) -> None:
    """Killed at any step, with requests that go on, share beginnings, are of two tenants, have adapters, and
    with resets."""
    num_kept, num_found = 0, 0
    for seed in range(5):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        lives = RecordedLives(
            folder, with_tokens=with_tokens, seed=seed, ahead=seed % 2, checkpoints=checkpoints
        )
        for life in range(4):
            scheduler = lives.begin(lives.dice.randint(1, 4))
            lives.live(scheduler, lives.dice.randint(5, 25))
            num_kept += lives.replays(scheduler)
            num_found += scheduler.prefix_cache.hit_rate.num_found if life else 0
    assert num_kept > 8 and num_found > (20 if checkpoints else 60)


def recorded(tmp_path: Path, kept: KeptCache) -> list[RecordedCall]:
    recording = open_recording(tmp_path / "r")
    scheduler = RecordedScheduler(recording, **SETTINGS)
    scheduler.track_cache(KeptChanges(), kept)
    scheduler.add(make(add_request(1, 9)))
    scheduler.schedule(0.0)
    recording.close()
    return list(RecordingReader(tmp_path / "r"))


def test_of_hashes_there_is_the_beginning(tmp_path: Path) -> None:
    """Nothing is there of the secret."""
    contents = bytes(range(32))
    kept = KeptCache(secret=SECRET, blocks=pack_u32([5, 2]), contents=contents)
    calls = recorded(tmp_path, kept)
    assert calls[0].HasField("start") and [call.event.name for call in calls[1:3]] == ["track_cache", "add"]
    columns = calls[1].event.columns
    assert unpack_u32(columns["blocks"]) == [5, 2]
    assert columns["hashes"] == contents[:8] + contents[16:24]
    assert not any(SECRET in call.SerializeToString() for call in calls)


def test_a_cache_that_begins_empty_is_not_recorded(tmp_path: Path) -> None:
    """Also one that makes no sense."""
    for number, blocks in enumerate(([], [99])):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        kept = KeptCache(secret=SECRET, blocks=pack_u32(blocks), contents=b"x" * 16 * len(blocks))
        assert not any(call.event.name == "track_cache" for call in recorded(folder, kept))
