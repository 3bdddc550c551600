"""Replays a recording: makes the recorded calls to a new scheduler, and finds the first plan that differs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine_core.quarantine.blame import Span, Suspect
from engine_core.quarantine.crash_journal import CrashJournal, new_journal
from engine_core.recording.analysis.summary import Figures
from engine_core.recording.file import FORMAT, BadRecording, RecordingReader
from engine_core.recording.kept_blocks import restore_kept
from engine_core.recording.plans import Columns, PlanReader, columns_of
from engine_core.recording.reconstructed_requests import ReconstructedRequests
from engine_core.recording.replay_worker import ReplayWorker
from engine_core.recording.settings import read_settings
from engine_core.request import FinishReason, Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.recording_pb2 import (
    RecordedCall,
    RecordedPlan,
    RecordedResult,
    RecordedSuspects,
    RecordedVerdict,
    RecordingStart,
)
from pagewire.ipc.columns import unpack_u32

_SHOWN = 8
"""Entries of a column that a message shows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a replay and its recording."""

    step: int
    now: float
    field: str
    expected: str
    got: str


@dataclass(slots=True)
class Outcome:
    """The result of a replay, up to the first difference."""

    num_plans: int = 0  # equal plans
    difference: Difference | None = None
    figures: Figures = field(default_factory=Figures)


class Replay:
    """One pass through a recording. `settings` are those of the recorded scheduler."""

    def __init__(self, recording: RecordingReader) -> None:
        """Reads the recording once, to reconstruct its requests. Raises BadRecording."""
        self._recording = recording
        start = read_start(recording)
        self.settings = read_settings(start.settings)
        self._recorded = ReconstructedRequests(
            recording, block_size=self.settings["block_size"], has_tokens=start.has_tokens
        )
        self._scheduler = Scheduler(**self.settings)
        self._worker = ReplayWorker(self._recorded, self._scheduler.states.groups)
        self._plans = PlanReader()
        self._requests: dict[int, Request] = {}
        self._planned_at = self._done_at = 0.0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Replays up to the end or the first difference."""
        handlers: dict[str, Callable[[Any], None]] = {
            "arrival": lambda arrival: self._add(arrival.number, not arrival.preparing),
            "prepared": lambda prepared: self._scheduler.prepared(self._requests[prepared.number]),
            "abort": lambda abort: self._scheduler.abort(self._requests[abort.number], abort.indexes),
            "deadline": lambda change: self._scheduler.set_deadline(
                self._requests[change.number], change.deadline_at if change.HasField("deadline_at") else None
            ),
            "finish": lambda finish: self._finish(finish.number, finish.reason),
            "reset": lambda _: self._scheduler.reset_cache(),
            "kept": lambda kept: restore_kept(kept, self._recorded, self._scheduler.prefix_cache),
            "suspects": self._open,
            "verdict": self._refuse,
            "plan": self._plan,
            "result": self._update,
        }
        for call in self._recording:
            kind = call.WhichOneof("call")
            if kind in handlers:
                handlers[kind](getattr(call, kind))
            if self._outcome.difference is not None:
                break
        figures = self._outcome.figures
        figures.add_outputs(self._scheduler.take_outputs(), self._done_at)
        figures.num_preemptions = self._scheduler.num_preemptions
        return self._outcome

    def _open(self, record: RecordedSuspects) -> None:
        suspects = {
            number: Suspect(Span(each.first, each.end), each.group, each.death, each.strikes)
            for number, each in enumerate(record.suspects, start=1)
        }
        page = new_journal(record.num_deaths, suspects, self._scheduler.num_rows)
        self._scheduler.open(CrashJournal(page))

    def _refuse(self, record: RecordedVerdict) -> None:
        assert self._scheduler.refuses(record.suspect), "the recorded suspects quarantine it"

    def _add(self, number: int, prepared: bool) -> None:
        request = self._recorded.request(number)
        self._requests[number] = request
        self._worker.expect(request)
        self._scheduler.add(request, prepared)

    def _finish(self, number: int, reason: int) -> None:
        self._scheduler.finish(self._requests[number], FinishReason(reason))

    def _plan(self, record: RecordedPlan) -> None:
        plan = self._scheduler.schedule(record.now)
        self._outcome.figures.add_outputs(self._scheduler.take_outputs(), record.now)
        expected = self._plans.read(record)
        got = columns_of(plan, self._worker.number_of)
        if expected != got:
            step = record.step or plan.step
            self._outcome.difference = Difference(step, record.now, *first_difference(expected, got))
        elif plan.rows:
            self._outcome.num_plans += 1
            self._outcome.figures.add_plan(plan, record.now)
            self._planned_at = record.now
            self._worker.submit(plan)

    def _update(self, record: RecordedResult) -> None:
        counts = unpack_u32(record.sample_counts)
        result = self._worker.collect(tuple(record.without_token), record.duration_us, counts)._replace(
            draft_counts=unpack_u32(record.draft_counts),
            next_draft_counts=unpack_u32(record.next_draft_counts),
            started_ns=record.started_ns,
            draft_prefill=record.draft_prefill,
            draft_methods=record.draft_methods,
        )
        self._outcome.figures.add_result(result)
        self._scheduler.update(result)
        self._done_at = self._planned_at + 1e-6 * record.duration_us


def first_difference(expected: Columns, got: Columns) -> tuple[str, str, str]:
    """Returns the first column that differs, and its content there in both."""
    for name in dict.fromkeys([*expected, *got]):
        left, right = expected.get(name), got.get(name)
        if left == right:
            continue
        if left is None or right is None:
            return name, _show(left), _show(right)
        pairs = zip(left, right, strict=False)
        index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
        return (f"{name}[{index}]" if index else name), _show(left[index:]), _show(right[index:])
    raise AssertionError("the columns are the same")


def _show(column: list[Any] | None) -> str:
    if column is None:
        return "nothing"
    more = f" and {len(column) - _SHOWN} more" if len(column) > _SHOWN else ""
    return f"{column[:_SHOWN]}{more}"


def read_start(recording: RecordingReader) -> RecordingStart:
    """Returns the first call of a recording. Raises BadRecording."""
    first = next(iter(recording), RecordedCall())
    if not first.HasField("start"):
        raise BadRecording(f"{recording.path} holds no call: {recording.incomplete or 'it is empty'}")
    if first.start.format != FORMAT:
        raise BadRecording(
            f"{recording.path} has format {first.start.format}, this is for format {FORMAT}:"
            f" it was written by pagewire {first.start.version}"
        )
    return first.start
