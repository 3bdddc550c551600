"""Settings of a scheduler in a recording."""

from pathlib import Path

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights
from engine_core.recording.file import open_recording
from engine_core.recording.recorder import RecordedScheduler
from pagewire_replay.reader import RecordingReader, read_settings, read_start


def test_settings_come_back_as_they_were(tmp_path: Path):
    settings = {
        "num_blocks": 7,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "prefix_cache": False,
        "policy": "fcfs",
        "swap_costs": SwapCosts(1.5, 0.25),
        "weights": Weights(prompt_token=0.5, tenants={"acme": 3.0, "the other one": 0.1}),
    }
    recording = open_recording(tmp_path / "r")
    RecordedScheduler(recording, **settings)
    recording.close()
    assert read_settings(read_start(RecordingReader(tmp_path / "r")).settings) == settings
