"""Equal calls give equal plans; a scheduler that differs is found, at the right step."""

import ast
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from engine_core.intake.validation import Limits
from engine_core.recording.file import open_recording
from engine_core.recording.recorder import RecordedScheduler
from engine_core.request import FinishReason
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from pagewire.internal.v1.recording_pb2 import RecordingStart
from pagewire_replay import replay
from pagewire_replay.reader import BadRecording, RecordingReader
from pagewire_replay.replay import Replay, first_difference
from tests.engine_core.fakes import LIMITS, FakeWorker, Ledger, add_request, make, run
from tests.engine_core.test_scheduler_walk import SchedulerWalk


class RecordedWalk(SchedulerWalk):
    """A random walk that is recorded, and replayed in the end."""

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


def record_a_crowd(path: Path) -> int:
    """24 requests, more than the pool holds. Returns the number of steps."""
    recording = open_recording(path)
    settings = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16}
    scheduler, worker = RecordedScheduler(recording, **settings), FakeWorker(20, 4)
    for handle in range(1, 25):
        scheduler.add(make(add_request(handle, 3 + handle % 9, n=1 + handle % 2, max_tokens=12)))
    run(scheduler, worker, Ledger())
    recording.close()
    return scheduler.step


def test_a_deadline_that_was_moved_is_replayed(tmp_path: Path):
    """Otherwise the request would end in another step."""
    recording = open_recording(tmp_path / "r")
    settings = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16}
    scheduler, worker = RecordedScheduler(recording, **settings), FakeWorker(20, 4)
    requests, ledger = [], Ledger()
    for handle in (1, 2):
        message = add_request(handle, max_tokens=20, ignore_eos=True)
        message.deadline.seconds = 5
        requests.append(make(message))
        scheduler.add(requests[-1])
    for now in range(12):
        if now == 2:
            scheduler.set_deadline(requests[0], 9.0)
            scheduler.set_deadline(requests[1], None)
        run(scheduler, worker, ledger, steps=1, now=float(now))
    recording.close()
    assert not requests[0].num_live and requests[1].num_live
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.difference is None and outcome.num_plans == scheduler.step == 12


class OtherScheduler(Scheduler):
    """Swaps two sequences in step 9."""

    def schedule(self, now: float) -> Plan:
        if self.step == 8:
            running = self.states.running
            running[0], running[1] = running[1], running[0]
        return super().schedule(now)


def test_the_first_plan_that_differs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record_a_crowd(tmp_path / "r")
    monkeypatch.setattr(replay, "Scheduler", OtherScheduler)
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.num_plans == 8 and outcome.difference is not None
    assert (outcome.difference.step, outcome.difference.field) == (9, "rows")
    expected, got = (ast.literal_eval(text) for text in (outcome.difference.expected, outcome.difference.got))
    assert expected == [got[1], got[0], *got[2:]]


def test_each_kind_of_difference_is_named():
    plan = {"step": [3], "rows": [1, 2, 3], "starts": [5, 6, 7], "counts": [1] * 3}
    cases = {
        "step": ({"step": [3]}, {"step": [4]}, "[3]", "[4]"),
        "rows": (plan, plan | {"rows": [2, 1, 3]}, "[1, 2, 3]", "[2, 1, 3]"),
        "starts[1]": (plan, plan | {"starts": [5, 8, 7]}, "[6, 7]", "[8, 7]"),
        "counts[2]": (plan, plan | {"counts": [1, 1]}, "[1]", "[]"),
        "new_rows": (plan, plan | {"new_rows": [(0, 1)]}, "nothing", "[(0, 1)]"),
    }
    for name, (expected, got, left, right) in cases.items():
        assert first_difference(expected, got) == (name, left, right)
    long = first_difference({"rows": list(range(100))}, {"rows": [1]})
    assert long == ("rows", "[0, 1, 2, 3, 4, 5, 6, 7] and 92 more", "[1]")


def test_a_recording_without_its_tail_replays_as_far_as_it_goes(tmp_path: Path):
    """The process died: the ends of running sequences are missing, but not the plans."""
    path = tmp_path / "r"
    steps = record_a_crowd(path)
    calls = list(RecordingReader(path))
    for length in range(10, len(calls), 7):
        path.unlink()
        recording = open_recording(path)
        for call in calls[:length]:
            recording.add().CopyFrom(call)
        recording.close()
        path.write_bytes(path.read_bytes() + b"tail")
        reader = RecordingReader(path)
        outcome = Replay(reader).run()
        assert outcome.difference is None and outcome.num_plans <= steps
        assert "ends within the chunk" in reader.incomplete


@pytest.mark.parametrize("with_tokens", [False, True])
def test_continued_streams_share_delivered_blocks_also_without_their_ends(tmp_path: Path, with_tokens: bool):
    """A core that is killed records no ends; arrivals have the hashes of delivered blocks, too."""
    settings = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    recording = open_recording(tmp_path / "whole")
    scheduler = RecordedScheduler(recording, with_tokens=with_tokens, **settings)
    equal, other = list(range(300, 313)), list(range(400, 413))
    for handle, outputs in ((1, {0: equal, 1: equal}), (2, {0: equal, 1: other})):
        scheduler.add(make(add_request(handle, [5, 6, 7], n=2, max_tokens=20, delivered=outputs)))
    plan = scheduler.schedule(1.0)
    shared = [set(plan.new_rows[0].blocks) & set(row.blocks) for row in plan.new_rows[1:]]
    assert [len(blocks) for blocks in shared] == [3, 3, 0]
    recording.close()
    killed = open_recording(tmp_path / "killed")
    for call in RecordingReader(tmp_path / "whole"):
        if call.event.name != "ended":
            killed.add().CopyFrom(call)
    killed.close()
    for name in ("whole", "killed"):
        outcome = Replay(RecordingReader(tmp_path / name)).run()
        assert outcome.difference is None and outcome.num_plans == 1


@pytest.mark.parametrize("with_tokens", [False, True])
def test_a_request_that_prepares_shares_blocks_with_one_that_does_not(tmp_path: Path, with_tokens: bool):
    """It has no hashes when it arrives, and its namespace is recorded all the same."""
    settings = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16}
    recording, ledger = open_recording(tmp_path / "r"), Ledger()
    scheduler, worker = RecordedScheduler(recording, with_tokens=with_tokens, **settings), FakeWorker(20, 4)
    first, second = (make(add_request(handle, list(range(5, 18)), max_tokens=3)) for handle in (1, 2))
    scheduler.add(first, prepared=False)
    scheduler.prepared(first)
    run(scheduler, worker, ledger)
    scheduler.add(second)
    run(scheduler, worker, ledger)
    recording.close()
    assert scheduler.prefix_cache.hit_rate.num_found == 12
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.difference is None and outcome.num_plans == scheduler.step


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (None, "holds no call: it is empty"),
        ({"format": 99, "version": "2031.1.0"}, "has format 99, .* written by pagewire 2031.1.0"),
        ({"format": 2, "version": "2026.11.1"}, "has format 2, .* written by pagewire 2026.11.1"),
    ],
)
def test_a_recording_that_cannot_be_replayed_is_refused(
    tmp_path: Path, start: dict[str, Any] | None, message: str
):
    recording = open_recording(tmp_path / "r")
    if start:
        recording.add().start.MergeFrom(RecordingStart(**start))
    recording.close()
    with pytest.raises(BadRecording, match=message):
        Replay(RecordingReader(tmp_path / "r"))


def test_a_complete_grammar_ends_an_output_before_min_tokens(tmp_path: Path):
    """The grammar itself is not recorded; that there is one is."""
    settings = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16}
    message = add_request(1, 5, max_tokens=12)

    def ledger_of(scheduler: Scheduler, limits: Limits) -> Ledger:
        ledger = Ledger()
        scheduler.add(make(message, limits))
        run(scheduler, FakeWorker(20, 4), ledger)
        return ledger

    tokens = ledger_of(Scheduler(**settings), LIMITS).tokens[1, 0]
    third = tokens[2]
    assert third not in tokens[:2]
    message.stopping.min_tokens, message.grammar = 6, "{}"
    recording = open_recording(tmp_path / "r")
    limits = replace(LIMITS, eos_token_ids=frozenset({third}))
    ledger = ledger_of(RecordedScheduler(recording, **settings), limits)
    recording.close()
    assert ledger.tokens[1, 0] == tokens[:3] and ledger.ends[1, 0] == FinishReason.EOS
    assert Replay(RecordingReader(tmp_path / "r")).run().difference is None
