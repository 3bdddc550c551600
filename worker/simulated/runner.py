"""Executes step plans without a model: the rows are real, tokens and times are not.

The device has a timeline of its own: a step begins when it is launched, or when the step before it ends.
"""

import ctypes
import sys
from collections import deque
from dataclasses import dataclass

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.fault_injection import Faults
from worker.simulated.beams import SimulatedBeams
from worker.simulated.clock import Clock
from worker.simulated.roofline import Roofline
from worker.simulated.scores import SimulatedScores
from worker.simulated.tokens import TokenSource
from worker.step.plan_reader import (
    append_tokens,
    apply_changes,
    block_copies,
    read_step,
    read_swaps,
    token_column,
)
from worker.step.rows import RowTable

_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class HostLink:
    """To the swap space."""

    num_blocks: int  # there
    seconds_per_block: float  # for a copy, either way


class SimulatedRunner:
    """In place of worker.cpu.runner.Runner: keeps the same rows and refuses the same plans."""

    def __init__(
        self,
        rows: RowTable,
        tokens: TokenSource,
        roofline: Roofline,
        host_link: HostLink,
        faults: Faults,
        max_num_batched_tokens: int,
        clock: Clock,
    ) -> None:
        self._rows, self._tokens, self._roofline, self._faults = rows, tokens, roofline, faults
        self._scores = SimulatedScores(rows.vocab_size)
        self._host_link = host_link
        self._beams = SimulatedBeams(rows.max_num_rows, rows.vocab_size, tokens)
        self._clock = clock
        self._max_num_batched_tokens = max_num_batched_tokens
        self._under_way: deque[tuple[float, worker_pb2.StepResult]] = deque()  # and when they are done

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """One step, from its launch to its end."""
        self.launch(plan)
        return self.finish()

    def launch(self, plan: worker_pb2.StepPlan) -> None:
        """Does the books of a step, which the device begins when it is free. Raises PlanError."""
        now = self._clock.now()
        self._faults.strike(plan)
        apply_changes(plan, self._rows, (self._tokens, self._scores, self._beams))
        if plan.append_rows:
            self._beams.append(*append_tokens(plan, self._rows))
        seconds = self._swap(plan)
        block_copies(plan, self._rows.cache_blocks)
        result = worker_pb2.StepResult(step=plan.step)
        seconds += self._compute(plan, result) if plan.rows else 0.0
        seconds *= self._faults.slow_factor
        start = max(now, self._under_way[-1][0]) if self._under_way else now
        result.started_ns, result.duration_us = round(1e9 * start), round(1e6 * seconds)
        self._under_way.append((start + seconds, result))

    def seconds_left(self) -> float | None:
        """See worker.loop.StepRunner."""
        if not self._under_way:
            return None
        end, _ = self._under_way[0]
        return max(0.0, end - self._clock.now())

    def finish(self) -> worker_pb2.StepResult:
        """See worker.loop.StepRunner."""
        left = self.seconds_left()
        if left:
            self._clock.sleep(left)
        _, result = self._under_way.popleft()
        return result

    def _swap(self, plan: worker_pb2.StepPlan) -> float:
        """Seconds that the plan's copies over the host link take."""
        swaps = read_swaps(plan, self._rows.cache_blocks, self._host_link.num_blocks)
        return len(swaps) * self._host_link.seconds_per_block if swaps else 0.0

    def _compute(self, plan: worker_pb2.StepPlan, result: worker_pb2.StepResult) -> float:
        """Puts tokens and log-probabilities into the result; seconds that the step takes."""
        step = read_step(plan, self._rows, self._max_num_batched_tokens)
        parts = self._scores.prompt_parts(step.rows, step.starts, step.counts)
        num_logits = len(step.sample_rows) + sum(part.end - part.start for part in parts)
        self._rows.finish_step(step.rows, step.starts + step.counts)
        result.prompt_logprobs.extend(self._scores.prompts(parts, self._rows.token_ids))
        self._sample(step.sample_rows, result)
        return self._roofline.seconds(step.starts, step.counts, num_logits)

    def _sample(self, rows: Integers, result: worker_pb2.StepResult) -> None:
        """rows: [A]."""
        if not self._beams.are_among(rows):
            tokens = self._draw(rows, result)
        else:
            beams = self._beams.among(rows)
            tokens = np.empty(len(rows), np.int64)
            tokens[beams] = self._beams.offer(rows[beams], result)
            tokens[~beams] = self._draw(rows[~beams], result)
        result.token_ids = token_column(tokens)

    def _draw(self, rows: Integers, result: worker_pb2.StepResult) -> Integers:
        """The tokens of rows [A], which are appended to them."""
        num_tokens = self._rows.num_tokens[rows]
        tokens = self._tokens.sample(rows, num_tokens - self._rows.prompt_lens[rows])
        known = np.maximum(tokens, 0)
        columns = self._scores.sampled(rows, num_tokens, known)
        if columns is not None:
            result.logprobs.CopyFrom(columns)
        self._rows.append(rows, known)
        return tokens


def sleep_precisely() -> None:
    """Lets this thread's sleeps end within a microsecond or so of their time; Linux adds 50 us otherwise."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
