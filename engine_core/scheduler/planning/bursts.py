"""Bursts: plans of several steps for rows that decode alone.

Each step wakes the engine core, its frontend and the client. Where all of them share the worker's cores, that
takes a fifth of a small model's time. While nothing waits, a plan lets each row sample several tokens; a
worker that drafts nothing computes them step by step. It stops early when a row may have ended, or when the
core says so, as it does for whatever arrives meanwhile.

A burst takes at most as long as `seconds`. Its length follows from the duration of the last step that decoded
as many rows, which comes with results and is recorded with them, so that a replay decides the same.
"""

from collections.abc import Sequence as Many

from engine_core.request import Sequence
from engine_core.scheduler.planning.step_batch import Batch
from engine_core.scheduler.states.running import SlotAllocator
from engine_core.step.plan import Plan
from engine_core.step.result import Result

MOST_STEPS = 16
"""Of a burst."""


class Bursts:
    """Plans rows that decode alone, with room for several tokens each."""

    def __init__(self, slots: SlotAllocator, seconds: float) -> None:
        """seconds: most that a burst takes; 0: plans are of one step."""
        self._slots, self._seconds = slots, seconds
        self._rows, self._step_seconds = 0, 0.0  # of the last plan whose rows only decoded

    def note(self, plan: Plan, result: Result) -> None:
        """Takes the duration of a step."""
        counts = result.sample_counts or plan.counts
        steps = max(counts, default=0)
        if len(plan.sample_rows) == len(plan.rows) and sum(counts) == steps * len(plan.rows):
            of_group = 2 if plan.micro_batch else 1  # all rows take longer, at most so many times as long
            self._rows, self._step_seconds = len(plan.rows), of_group * result.duration_us / 1e6 / steps

    @property
    def are_short(self) -> bool:
        """Whether steps are so short that a burst has several of them."""
        return 0 < self._step_seconds <= self._seconds / 2

    def add(self, decoding: Many[Sequence], plan: Plan, batch: Batch) -> bool:
        """Adds sequences that decode, all of a plan, as a burst. Returns False, and adds nothing, if it would
        have a single step."""
        steps = self._length(decoding, batch.budget)
        if steps > 1:
            room = [self._slots.reserve_ahead(each, steps - 1, len(decoding), plan) for each in decoding]
            steps = 1 + min(room)
        if steps > 1:
            for sequence in decoding:
                batch.add_sampling(sequence, steps)
        return steps > 1

    def _length(self, decoding: Many[Sequence], budget: int) -> int:
        """Returns how many steps fit into the time and the budget of tokens, and all sequences may take. The
        first tokens of an output come one by one."""
        if self._rows != len(decoding) or not self.are_short:
            return 1
        steps = min(int(self._seconds / self._step_seconds), budget // len(decoding), MOST_STEPS)
        for sequence in decoding:
            if not sequence.request.may_burst:
                return 1
            steps = min(steps, len(sequence.output), sequence.limit - sequence.num_tokens)
        return steps
