"""The speed of the engine, measured from its steps. Times come from the caller of schedule()."""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.errors import InvariantError
from engine_core.request import Sequence
from engine_core.step.plan import Plan

_WINDOW = 64
"""Events that a mean covers, approximately, so that it follows the load."""
_ENOUGH = 16
"""Runs that must have ended before their mean length is used: short ones end first."""


@dataclass(slots=True)
class Mean:
    """The mean of the first events; after that an exponential moving average."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Adds one event."""
        self.count += 1
        self.value += (value - self.value) / min(self.count, _WINDOW)


class Throughput:
    """Mean length of a step and of a run, and the speed of prompts in full steps."""

    def __init__(self) -> None:
        self.step_seconds = Mean()
        self.run_steps = Mean()
        """Steps from getting a row to losing it."""
        self._steps = 0
        self._last = 0.0  # when the last step was planned
        self._prompt_tokens = 0  # in the last step, if that was full
        self._full_tokens = self._full_seconds = (
            0.0  # sums over such steps, of which the latest count for more
        )
        self._starts: dict[Sequence, int] = {}  # what runs -> steps before its first one

    @property
    def turnover_seconds(self) -> float | None:
        """Seconds for which a sequence holds its row and its blocks; None: not known yet."""
        if self.run_steps.count < _ENOUGH:
            return None
        return self.run_steps.value * self.step_seconds.value

    def prompt_seconds(self, tokens: float) -> float | None:
        """Seconds to compute so many prompt tokens while other sequences decode; None: not known yet."""
        if not self._full_tokens:
            return None
        return tokens * self._full_seconds / self._full_tokens

    def started(self, sequence: Sequence) -> None:
        """Registers that a sequence has got a row."""
        self._starts[sequence] = self._steps

    def stopped(self, sequence: Sequence) -> None:
        """Registers that a sequence has lost its row."""
        self.run_steps.add(self._steps - self._starts.pop(sequence))

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError unless it times so many sequences."""
        if len(self._starts) != num_running:
            raise InvariantError(f"{num_running} sequences run, but {len(self._starts)} are timed")

    def step(self, plan: Plan, now: float, budget_left: int) -> None:
        """Registers a planned step.

        The last step took until now, unless no sequence of it runs any more: the engine may have been idle.
        """
        self._steps += 1
        if len(plan.rows) > len(plan.new_rows):
            seconds = now - self._last
            self.step_seconds.add(seconds)
            if self._prompt_tokens:
                kept = 1 - 1 / _WINDOW
                self._full_tokens = self._full_tokens * kept + self._prompt_tokens
                self._full_seconds = self._full_seconds * kept + seconds
        self._last = now
        # A row that decodes computes what it samples; in a full step the other tokens are of prompts.
        prompt_tokens = sum(plan.counts) - len(plan.counts) - plan.num_extra_samples
        self._prompt_tokens = 0 if budget_left else prompt_tokens
