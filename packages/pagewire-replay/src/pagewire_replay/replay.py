"""Replays a recording: makes the recorded calls to a new scheduler, and finds the first plan that differs."""

from dataclasses import dataclass, field
from typing import Any

from engine_core.quarantine.blame import Span, Suspect
from engine_core.quarantine.crash_journal import CrashJournal, new_journal
from engine_core.recording.plans import Columns, columns_of, requests_of
from engine_core.request import FinishReason, Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.recording_pb2 import RecordedEvent, RecordedPlan
from pagewire.internal.v1.worker_pb2 import StepResult
from pagewire_replay.kept_blocks import restore_kept
from pagewire_replay.reader import PlanReader, RecordingReader, facts_of, read_settings, read_start
from pagewire_replay.reconstructed_requests import ReconstructedRequests
from pagewire_replay.replay_worker import ReplayWorker
from pagewire_replay.summary import Figures

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
        self._worker = ReplayWorker(self._recorded, self._scheduler.states)
        self._plans = PlanReader()
        self._media: dict[bytes, int] = {}  # numbers by digest
        self._requests: dict[int, Request] = {}
        self._planned_at = self._done_at = 0.0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Replays up to the end or the first difference."""
        for call in self._recording:
            if call.HasField("plan"):
                self._plan(call.plan)
            elif call.HasField("result"):
                self._update(call.result)
            elif call.HasField("event"):
                self._call(call.event)
            if self._outcome.difference is not None:
                break
        figures = self._outcome.figures
        figures.add_outputs(self._scheduler.take_outputs(), self._done_at)
        figures.num_preemptions = self._scheduler.num_preemptions
        return self._outcome

    def _call(self, event: RecordedEvent) -> None:
        """Makes the call of an event, if it is a call."""
        scheduler, facts = self._scheduler, facts_of(event)
        if event.name == "add":
            self._requests[event.number] = request = self._recorded.request(event.number)
            scheduler.add(request, facts["prepared"])
        elif event.name == "prepared":
            scheduler.prepared(self._requests[event.number])
        elif event.name == "abort":
            scheduler.abort(self._requests[event.number], facts["indexes"])
        elif event.name == "set_deadline":
            scheduler.set_deadline(self._requests[event.number], facts["deadline_at"])
        elif event.name == "finish":
            scheduler.finish(self._requests[event.number], FinishReason(facts["reason"]))
        elif event.name == "reset_cache":
            scheduler.reset_cache()
        elif event.name == "track_cache":
            restore_kept(event.columns, self._recorded, scheduler.prefix_cache)
        elif event.name == "open":
            suspects = {
                number: Suspect(Span(first, end), *others)
                for number, (first, end, *others) in enumerate(facts["suspects"], start=1)
            }
            page = new_journal(facts["num_deaths"], suspects, scheduler.num_rows)
            scheduler.open(CrashJournal(page))
        elif event.name == "refuses":
            assert scheduler.refuses(facts["suspect"]), "the recorded suspects quarantine it"

    def _plan(self, record: RecordedPlan) -> None:
        plan = self._scheduler.schedule(record.now)
        self._outcome.figures.add_outputs(self._scheduler.take_outputs(), record.now)
        expected = self._plans.read(record)
        requests = requests_of(plan, self._scheduler.states)
        got = columns_of(plan, {row: request.handle for row, request in requests.items()}, self._media)
        if expected != got:
            step = record.step or plan.step
            self._outcome.difference = Difference(step, record.now, *first_difference(expected, got))
        elif plan.rows:
            self._outcome.num_plans += 1
            self._outcome.figures.add_plan(plan, record.now)
            self._planned_at = record.now
            self._worker.submit(plan)

    def _update(self, record: StepResult) -> None:
        result = self._worker.collect(record)
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
