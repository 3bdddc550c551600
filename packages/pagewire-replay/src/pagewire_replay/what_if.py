"""Simulates the requests of a recording on a scheduler with other settings, in virtual time.

Requests arrive at the recorded times and generate the recorded tokens, which do not depend on how a
sequence is scheduled. Each sequence ends with the output that it had, also where its client aborted it. A
sequence that was aborted before its first token is aborted at the same time; a sequence without a token at
the end of the recording is aborted there. The durations of steps come from step_time_model.py. The loop is
that of EngineCore.step().
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.errors import PagewireError
from pagewire_replay.reader import RecordingReader, facts_of
from pagewire_replay.reconstructed_requests import ReconstructedRequests
from pagewire_replay.replay_worker import ReplayWorker
from pagewire_replay.step_time_model import StepTimes
from pagewire_replay.summary import Figures


class CannotTry(PagewireError):
    """The requests of a recording cannot be served with the settings asked for."""


class _Event(NamedTuple):
    at: float
    number: int  # of a request; 0: the cache is reset
    indexes: tuple[int, ...] = ()  # of sequences to abort; empty: the request arrives


def what_if(
    recording: RecordingReader,
    recorded: ReconstructedRequests,
    settings: Mapping[str, Any],
    times: StepTimes,
    *,
    ahead: bool,
) -> Figures:
    """Returns the figures of a simulated run. Raises CannotTry.

    recorded: with ends_by_length. settings: those of Scheduler; stages are taken for one, as all steps of
    this run come one after the other. ahead: plan one step ahead.
    """
    run = _Run(recorded, Scheduler(**{**settings, "stages": 1}), times, 2 if ahead else 1)
    run.check_fits()
    for event in sorted(_events(recording, recorded), key=lambda event: event.at):
        run.run_until(event.at)
        run.take(event)
    run.run_until(float("inf"))
    return run.figures


class _Run:
    def __init__(
        self, recorded: ReconstructedRequests, scheduler: Scheduler, times: StepTimes, max_under_way: int
    ) -> None:
        self.scheduler = scheduler
        self.figures = Figures()
        self._recorded = recorded
        self._times = times
        self._max_under_way = max_under_way
        self._worker = ReplayWorker(recorded, scheduler.states)
        self._requests: dict[int, Request] = {}
        self._now = 0.0
        self._done_at: deque[float] = deque()  # of plans under way
        self._is_idle = True

    def check_fits(self) -> None:
        """Raises CannotTry if some request could never run."""
        tables, num_rows = self.scheduler.tables, self.scheduler.num_rows
        for each in self._recorded:
            if each.n > num_rows:
                raise CannotTry(f"a request has {each.n} sequences, but only {num_rows} may run at once")
            tokens = max(map(each.num_tokens, range(each.n)))
            blocks = tables.blocks_for(tokens)
            if each.facts["num_beam_results"]:  # beams run together, and may share only the prompt
                shared = each.prompt_len // tables.block_size
                blocks = shared + each.n * (blocks - shared)
            if blocks > tables.pool.num_blocks:
                raise CannotTry(
                    f"a request with up to {tokens} tokens needs {blocks} blocks,"
                    f" but there would be {tables.pool.num_blocks}"
                )

    def take(self, event: _Event) -> None:
        """Applies an event at the time of the last run_until()."""
        self._is_idle = False
        if not event.number:
            self.scheduler.reset_cache()
        elif event.indexes:
            self.scheduler.abort(self._requests[event.number], event.indexes)
        else:
            request = self._requests[event.number] = self._recorded.request(event.number)
            self.scheduler.add(request)

    def run_until(self, time: float) -> None:
        """Runs steps until the clock reaches `time` or there is nothing left to do."""
        while self._now < time and not self._is_idle:
            self._step()
        if self._is_idle and time != float("inf"):
            self._now = max(self._now, time)

    def _step(self) -> None:
        plan = self.scheduler.schedule(self._now)
        if plan.rows:
            self.figures.add_plan(plan, self._now)
            self._worker.submit(plan)
            self._now += self._times.host
            begins_at = max(self._now, self._done_at[-1] if self._done_at else 0.0)
            self._done_at.append(begins_at + self._times.of(plan))
        under_way = len(self._done_at)
        if under_way == self._max_under_way or (under_way and not plan.rows):
            self._now = max(self._now, self._done_at.popleft())
            self.scheduler.update(self._worker.collect())
        elif not plan.rows:
            self._is_idle = True
        self.figures.num_preemptions = self.scheduler.num_preemptions
        self.figures.add_outputs(self.scheduler.take_outputs(), self._now)


def _events(recording: RecordingReader, recorded: ReconstructedRequests) -> Iterator[_Event]:
    """Yields arrivals at their times, and all other events at the time of the next plan."""
    now, pending = 0.0, list[tuple[int, tuple[int, ...]]]()
    for call in recording:
        event, facts = call.event, facts_of(call.event)
        if event.name == "add":
            yield _Event(facts["arrival"], event.number)
        elif event.name == "reset_cache":
            pending.append((0, ()))
        elif event.name in ("abort", "finish"):
            named = facts.get("indexes") or range(recorded[event.number].n)
            pending.append((event.number, tuple(named)))
        elif call.HasField("plan"):
            now = max(now, call.plan.now)
            for number, indexes in pending:
                yield from _aborts(now, recorded, number, indexes) if number else [_Event(now, 0)]
            pending.clear()
    for each in recorded:
        yield from _aborts(now, recorded, each.number, range(each.n))


def _aborts(
    now: float, recorded: ReconstructedRequests, number: int, indexes: Iterable[int]
) -> Iterator[_Event]:
    """Yields the abort of sequences without output. Sequences with output end where they were aborted."""
    without_output = tuple(index for index in indexes if not recorded[number].outputs[index])
    if without_output:
        yield _Event(now, number, without_output)
