"""What if: the requests of a recording, on a scheduler with other settings, under a clock of its own.

Requests arrive when they arrived and become what they became: the tokens of a sequence do not depend on
how it was scheduled. Each ends with the output that it had, also one that its client left (how long it
would have stayed, nobody knows); one that was left before its first token is left at that time, and one
that was still without a token when the recording ended is left then. How long steps take says a formula
(step_times.py). The loop is that of EngineCore.step().
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from engine_core.recording.analysis.step_time_model import StepTimes
from engine_core.recording.analysis.summary import Figures
from engine_core.recording.file import RecordingReader
from engine_core.recording.reconstructed_requests import Stories
from engine_core.recording.replay_worker import ReplayedWorker
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from pagewire.errors import PagewireError


class CannotTry(PagewireError):
    """The requests of a recording cannot be served with these settings."""


class _Event(NamedTuple):
    at: float
    number: int  # of a request; 0: the cache is emptied
    indexes: tuple[int, ...] = ()  # to abort; none: it arrives


def what_if(
    recording: RecordingReader,
    stories: Stories,
    settings: Mapping[str, Any],
    times: StepTimes,
    *,
    ahead: bool,
) -> Figures:
    """Runs the requests. stories: with as_far. settings: those of Scheduler. Raises CannotTry."""
    run = _Run(stories, Scheduler(**settings), times, 2 if ahead else 1)
    run.check_fits()
    for event in sorted(_events(recording, stories), key=lambda event: event.at):
        run.run_until(event.at)
        run.take(event)
    run.run_until(float("inf"))
    return run.figures


class _Run:
    def __init__(self, stories: Stories, scheduler: Scheduler, times: StepTimes, max_under_way: int) -> None:
        self.scheduler = scheduler
        self.figures = Figures()
        self._stories = stories
        self._times = times
        self._max_under_way = max_under_way
        self._worker = ReplayedWorker(stories)
        self._requests: dict[int, Request] = {}
        self._now = 0.0
        self._done_at: deque[float] = deque()  # of plans under way
        self._is_idle = True

    def check_fits(self) -> None:
        """Raises CannotTry when some request would never run."""
        tables, num_rows = self.scheduler.tables, self.scheduler.num_rows
        for story in self._stories:
            if story.arrival.n > num_rows:
                raise CannotTry(
                    f"a request has {story.arrival.n} sequences, but only {num_rows} may run at once"
                )
            tokens = max(map(story.num_tokens, range(story.arrival.n)))
            blocks = tables.blocks_for(tokens)
            if story.arrival.beam_width:  # beams stay together, and may share nothing but the prompt
                shared = story.arrival.prompt_len // tables.block_size
                blocks = shared + story.arrival.n * (blocks - shared)
            if blocks > tables.pool.num_blocks:
                raise CannotTry(
                    f"a request with up to {tokens} tokens needs {blocks} blocks,"
                    f" but there would be {tables.pool.num_blocks}"
                )

    def take(self, event: _Event) -> None:
        """Something happens, at the time of the last run_until()."""
        self._is_idle = False
        if not event.number:
            self.scheduler.reset_cache()
        elif event.indexes:
            self.scheduler.abort(self._requests[event.number], event.indexes)
        else:
            request = self._requests[event.number] = self._stories.request(event.number)
            self._worker.expect(request)
            self.scheduler.add(request)

    def run_until(self, time: float) -> None:
        """Steps, as long as there is something to do and the clock has not come so far."""
        while self._now < time and not self._is_idle:
            self._step()
        if self._is_idle and time != float("inf"):
            self._now = max(self._now, time)

    def _step(self) -> None:
        plan = self.scheduler.schedule(self._now)
        if plan.rows:
            self.figures.planned(plan, self._now)
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
        self.figures.told(self.scheduler.take_outputs(), self._now)


def _events(recording: RecordingReader, stories: Stories) -> Iterator[_Event]:
    """Arrivals at their times; the rest at the time of the plan that came next."""
    now, pending = 0.0, list[tuple[int, tuple[int, ...]]]()
    for call in recording:
        kind = call.WhichOneof("call")
        if kind == "arrival":
            yield _Event(call.arrival.arrival, call.arrival.number)
        elif kind == "reset":
            pending.append((0, ()))
        elif kind == "abort":
            named = call.abort.indexes or range(stories[call.abort.number].arrival.n)
            pending.append((call.abort.number, tuple(named)))
        elif kind == "finish":
            pending.append((call.finish.number, tuple(range(stories[call.finish.number].arrival.n))))
        elif kind == "plan":
            now = max(now, call.plan.now)
            for number, indexes in pending:
                yield from _left(now, stories, number, indexes) if number else [_Event(now, 0)]
            pending.clear()
    for number in stories.numbers():
        yield from _left(now, stories, number, range(stories[number].arrival.n))


def _left(now: float, stories: Stories, number: int, indexes: Iterable[int]) -> Iterator[_Event]:
    """Sequences are left by their client. Those with output end by themselves, where they were left."""
    without_output = tuple(index for index in indexes if not stories[number].outputs[index])
    if without_output:
        yield _Event(now, number, without_output)
