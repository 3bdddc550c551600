"""A device without a model as a backend of the step executor: rows are real, tokens and times are computed.

The device has a timeline of its own: a step begins when it is launched, or when the step before it ends. With
stages, a step behind a micro-batch begins at each stage when that is done with the one before, and when the
tokens of its rows are known.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import worker_pb2
from pagewire_simulated.adapters import AdapterBound
from pagewire_simulated.beams import BeamHistories
from pagewire_simulated.clock import Clock
from pagewire_simulated.media import SimulatedMedia
from pagewire_simulated.roofline import Roofline
from pagewire_simulated.scores import SimulatedScores
from pagewire_simulated.states import SimulatedStates
from pagewire_simulated.tokens import TokenSource
from worker.config.audio import AudioConfig
from worker.config.vision import VisionConfig
from worker.executor.backend import (
    Completion,
    Deferred,
    LaunchClock,
    Media,
    SampledTokens,
    StepOutputs,
    StepTimes,
)
from worker.fault_injection import Faults
from worker.pooling.vectors import States
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart
from worker.step.beams import BeamCandidates
from worker.step.plan_reader import PlanCheck, RowFeature, Step, Swaps
from worker.step.rows import RowTable

_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link to the swap space."""

    num_blocks: int  # of the swap space
    seconds_per_block: float  # for a copy, in either direction


class SimulatedBackend:
    """A worker.executor.backend.Backend, and the outputs of its own steps: it refuses the same plans."""

    def __init__(
        self,
        rows: RowTable,
        tokens: TokenSource,
        roofline: Roofline,
        host_link: HostLink,
        faults: Faults,
        clock: Clock,
        state_size: int,
        vision: VisionConfig | AudioConfig | None = None,
        stages: int = 1,
    ) -> None:
        """state_size: elements of a hidden state. vision: of the model's encoder. stages: that divide the
        time of a step evenly."""
        self.grammars = tokens.grammars
        self.num_host_blocks = host_link.num_blocks
        self.images = SimulatedMedia(None if vision is None else vision.num_vectors)
        self.media: Media | None = self.images
        self.plan_check: PlanCheck | None = None
        self._rows, self._tokens, self.roofline, self._faults = rows, tokens, roofline, faults
        self._scores, self._histories = SimulatedScores(rows.vocab_size), BeamHistories(tokens)
        self.adapter_bound = AdapterBound()
        kept = tokens, self._scores, self._histories, self.adapter_bound, self.images
        self.features: Sequence[RowFeature] = kept
        self.host_link, self._clock, self._state_size = host_link, clock, state_size
        self._busy_until = 0.0  # the end of the last launched step
        self._stages_busy_until = [0.0] * stages
        self._known_at = np.zeros(rows.max_num_rows)  # the last token of each row
        self._in_parts = False  # whether the next step may begin before the last one ends
        self._follows_parts = False  # the step that is being launched
        self._num_in_flight = 0
        self._launched = 0.0
        self._seconds = 0.0  # of the step that is being launched: copies over the host link
        self._step: Step | None = None
        self._num_logits = 0

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        """No step is shorter."""
        return None

    @contextmanager
    def step(self, plan: worker_pb2.StepPlan) -> Iterator[None]:
        """Faults strike before anything changes."""
        self._launched, self._seconds, self._step = self._clock.now(), 0.0, None
        self._follows_parts, self._in_parts = self._in_parts and plan.micro_batch, plan.micro_batch
        self.images.num_encoded = 0
        self._faults.strike(plan)
        yield

    def update_rows(self, plan: worker_pb2.StepPlan, appended: list[int], token_ids: Integers) -> None:
        if appended:
            self._histories.append(appended, token_ids)
            self.grammars.record(appended, lambda: token_ids)

    def swap(self, swaps: Swaps) -> None:
        self._seconds = len(swaps) * self.host_link.seconds_per_block

    def copy_blocks(self, sources: Integers, targets: Integers) -> None:
        """Copies within the cache take no time."""

    def upload(self, step: Step, wanted: Wanted) -> None:
        self.adapter_bound.check(step.rows)
        self.images.check(step)
        self._step, self._num_logits = step, step.num_sampled_positions

    def forward(self) -> StepOutputs:
        return self

    def prompt_logprobs(
        self, parts: Sequence[PromptPart]
    ) -> Deferred[Iterable[worker_pb2.RowPromptLogprobs]]:
        self._num_logits += sum(part.end - part.start for part in parts)
        scored = list(self._scores.prompts(parts, self._rows.token_ids))
        return lambda: scored

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        num_tokens = self._rows.num_tokens[rows]
        tokens = self._tokens.sample(rows, num_tokens - self._rows.prompt_lens[rows])
        columns = self._scores.sampled(rows, num_tokens, np.maximum(tokens, 0), logprobs)
        return SampledTokens(tokens, lambda: tokens, lambda: columns)

    def beam_candidates(self, rows: Integers, index: Integers, count: int) -> Deferred[BeamCandidates]:
        candidates = self._histories.candidates(rows, count)
        return lambda: candidates

    def sampled_states(self, index: Integers) -> States:
        return self._states().sampled_states(index)

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        return self._states().chosen_logits(index, token_ids)

    def row_states(self, entry: int, count: int) -> States:
        return self._states().row_states(entry, count)

    def _states(self) -> SimulatedStates:
        assert self._step is not None
        return SimulatedStates(self._rows, self._step, self._state_size, self._tokens.state_shift)

    def begin(self) -> None:
        """The host knows all tokens at launch."""

    def submit(self, clock: LaunchClock) -> Completion:
        seconds, step = self._seconds, self._step
        if step is not None:
            seconds += self.roofline.seconds(step.starts, step.counts, self._num_logits)
        seconds += self.roofline.encoding_seconds(self.images.num_encoded)
        seconds *= self._faults.slow_factor
        start = self._begin(step, seconds)
        self._busy_until = self._stages_busy_until[-1]
        seconds = self._busy_until - start
        self._num_in_flight += 1
        return SimulatedCompletion(
            self, StepTimes(round(1e9 * start), round(1e6 * seconds)), self._busy_until
        )

    def _begin(self, step: Step | None, seconds: float) -> float:
        """Puts a step behind those before it. Returns when it begins."""
        busy, at = self._stages_busy_until, self._launched
        if self._num_in_flight:
            at = max(at, busy[0] if self._follows_parts else self._busy_until)
        if step is not None:
            at = max(at, float(self._known_at[step.rows].max()))
        start = at
        for stage, until in enumerate(busy):
            at = max(at, until) if self._follows_parts else at
            busy[stage] = at = at + seconds / len(busy)
        if step is not None:
            self._known_at[step.sample_rows] = at
        return start

    def seconds_until(self, end: float) -> float:
        """Returns the seconds from now to a point of the clock; 0 if it has passed."""
        return max(0.0, end - self._clock.now())

    def wait_until(self, end: float) -> None:
        """Sleeps to the end of the oldest step in flight, which is then done."""
        seconds = self.seconds_until(end)
        if seconds:
            self._clock.sleep(seconds)
        self._num_in_flight -= 1


class SimulatedCompletion:
    """The end of a step on the device's timeline. A worker.executor.backend.Completion."""

    def __init__(self, backend: SimulatedBackend, times: StepTimes, end: float) -> None:
        """end: in seconds of the backend's clock."""
        self._backend, self._times, self._end = backend, times, end

    def seconds_left(self, followed: bool) -> float:
        return self._backend.seconds_until(self._end)

    def wait(self) -> StepTimes:
        self._backend.wait_until(self._end)
        return self._times


def sleep_precisely() -> None:
    """Makes sleeps of this thread end within a microsecond of their time; Linux otherwise adds 50 us."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
