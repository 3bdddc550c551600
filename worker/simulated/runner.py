"""Executes step plans without a model: the rows are real, tokens and times are not."""

import ctypes
import sys

import numpy as np

from pagewire.internal.v1 import worker_pb2
from worker.rows import RowTable
from worker.simulated.clock import Clock
from worker.simulated.faults import Faults
from worker.simulated.roofline import Roofline
from worker.simulated.tokens import NO_TOKEN, TokenSource
from worker.step import NO_TOKEN_COLUMN, apply_changes, block_copies, read_step

_PR_SET_TIMERSLACK = 29


class SimulatedRunner:
    """In place of worker.runner.Runner: keeps the same rows and refuses the same plans."""

    def __init__(
        self,
        rows: RowTable,
        tokens: TokenSource,
        roofline: Roofline,
        faults: Faults,
        max_num_batched_tokens: int,
        clock: Clock,
    ) -> None:
        self._rows, self._tokens, self._roofline, self._faults = rows, tokens, roofline, faults
        self._clock = clock
        self._max_num_batched_tokens = max_num_batched_tokens

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Does the books of one step, and returns when its time is over. Raises PlanError."""
        began = self._clock.now()
        self._faults.strike(plan)
        apply_changes(plan, self._rows, (self._tokens,))
        block_copies(plan, self._rows.cache_blocks)
        seconds, token_ids = self._compute(plan) if plan.rows else (0.0, b"")
        seconds *= self._faults.slow_factor
        left = began + seconds - self._clock.now()
        if left > 0:
            self._clock.sleep(left)
        return worker_pb2.StepResult(step=plan.step, token_ids=token_ids, duration_us=round(1e6 * seconds))

    def _compute(self, plan: worker_pb2.StepPlan) -> tuple[float, bytes]:
        """Seconds that the step takes, and its tokens as a column."""
        step = read_step(plan, self._rows, self._max_num_batched_tokens)
        seconds = self._roofline.seconds(step.starts, step.counts, len(step.sample_rows))
        self._rows.finish_step(step.rows, step.starts + step.counts)
        sampled = step.sample_rows
        positions = self._rows.num_tokens[sampled] - self._rows.prompt_lens[sampled]
        tokens = self._tokens.sample(sampled, positions)
        self._rows.append(sampled, np.maximum(tokens, 0))
        return seconds, np.where(tokens == NO_TOKEN, NO_TOKEN_COLUMN, tokens).astype("<u4").tobytes()


def sleep_precisely() -> None:
    """Lets this thread's sleeps end within a microsecond or so of their time; Linux adds 50 us otherwise."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
