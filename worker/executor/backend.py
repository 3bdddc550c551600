"""What a device implements so that worker.executor.executor.StepExecutor can run step plans on it.

The executor keeps the rows and the order of the contract; a backend keeps what is on the device. A backend
may return from every method before the device has done the work: what comes back is then `Deferred`, and is
read once the step's Completion says that the step is done.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.grammar.rows import GrammarRows
from worker.pooling.vectors import States
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart
from worker.step.beams import BeamCandidates
from worker.step.plan_reader import PlanCheck, RowFeature, Step, Swaps

T = TypeVar("T")
Deferred = Callable[[], T]
"""Returns a value of a step. Called at most once, and only after the step is done."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens sampled for N rows."""

    host_tokens: Integers  # [N] the tokens as the host knows them at launch; 0 where only the device does
    tokens: Deferred[Integers]  # [N]; worker.step.beams.NO_TOKEN: the row has none
    logprobs: Deferred[engine_pb2.LogprobColumns | None]  # of those rows that requested them, in order


class StepTimes(NamedTuple):
    """The times of a StepResult. Phases of 0 are not measured."""

    started_ns: int
    duration_us: int
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    encode_us: int = 0


class LaunchClock:
    """When the phases of a step were launched, in nanoseconds of the monotonic clock."""

    def __init__(self) -> None:
        now = time.monotonic_ns()
        self.launched_ns = self._encoded_ns = self._uploaded_ns = self._forwarded_ns = now

    def mark_encoded(self) -> None:
        """Marks the end of the phase that encodes media, in a step that does."""
        self._encoded_ns = time.monotonic_ns()

    def mark_uploaded(self) -> None:
        """Marks the end of the phase that applies the plan and makes the inputs."""
        self._uploaded_ns = time.monotonic_ns()

    def mark_forwarded(self) -> None:
        """Marks the end of the model's phase."""
        self._forwarded_ns = time.monotonic_ns()

    def times(self, started_ns: int, ended_ns: int) -> StepTimes:
        """Returns the times of a step that the device began and ended at these points."""
        duration_us = (ended_ns - started_ns) // 1000
        encode_us = (self._encoded_ns - self.launched_ns) // 1000
        if self._forwarded_ns == self.launched_ns:  # nothing was computed
            return StepTimes(started_ns, duration_us, encode_us=encode_us)
        return StepTimes(
            started_ns,
            duration_us,
            prepare_us=(self._uploaded_ns - self._encoded_ns) // 1000,
            forward_us=(self._forwarded_ns - self._uploaded_ns) // 1000,
            sample_us=(ended_ns - self._forwarded_ns) // 1000,
            encode_us=encode_us,
        )


class Completion(Protocol):
    """The end of a launched step. Steps complete in the order of their launch."""

    def seconds_left(self, followed: bool) -> float:
        """Returns after how many seconds to look again; 0: wait() is due.

        followed: another step has been launched behind this one.
        """

    def wait(self) -> StepTimes:
        """Blocks until the step is done."""


class StepOutputs(Protocol):
    """What the model computed in one step, to sample from. A rows sample."""

    def prompt_logprobs(
        self, parts: Sequence[PromptPart]
    ) -> Deferred[Iterable[worker_pb2.RowPromptLogprobs]]:
        """Scores parts of prompts from the hidden states of the step."""

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        """Samples one token for each of the rows [N] and appends it to what the device keeps of them.

        index: [N] which of the step's logits they sample from, see Step.num_logits; None: all, in order.
        logprobs: rows that request log-probabilities of what they sample.
        """

    def beam_candidates(self, rows: Integers, index: Integers, count: int) -> Deferred[BeamCandidates]:
        """Returns the `count` most probable tokens of each of the rows [N]. index: see sample()."""

    def sampled_states(self, index: Integers) -> States:
        """Returns the hidden states [N, E] that logits are computed from. index: [N] of which of them, see
        sample()."""

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        """Returns the logits [N, C] of tokens [N, C], where Wanted.LOGITS are. index: [N], see sample()."""

    def row_states(self, entry: int, count: int) -> States:
        """Returns the hidden states [count, E] of all tokens that a row computes in the step. entry: of the
        row, among those that compute."""


class BegunStep(Protocol):
    """A micro-batch whose outputs other stages are making."""

    room: int
    """Tokens that a step may have to be computed by stages beside others."""
    most_begun: int
    """Steps that may have begun."""

    @property
    def has_arrived(self) -> bool:
        """Whether outputs() need not wait. Asked of the oldest step alone."""

    def outputs(self) -> StepOutputs:
        """Returns the outputs, valid until the next call of another step; they come in the order of steps."""


class Media(Protocol):
    """What the encoder has made of items, and the rows that have them."""

    @property
    def failed(self) -> Collection[int]:
        """Rows that have computed positions of items that became no vectors, or others than planned."""

    def follow(self, plan: worker_pb2.StepPlan) -> bool:
        """Forgets and encodes what a plan says. Returns whether memory has sufficed. Raises PlanError."""

    def forget_media(self) -> None:
        """Forgets all that is encoded, for a core that knows of nothing."""


class Backend(Protocol):
    """Rows, cache, model and sampler on one device."""

    features: Sequence[RowFeature]
    """State by row that the backend keeps; changed by the plan before update_rows()."""
    grammars: GrammarRows
    """Grammars of the rows; they change with `features`."""
    num_host_blocks: int
    """Blocks of the swap space."""
    plan_check: PlanCheck | None
    """A compiled check of plans; None: numpy checks them."""

    @property
    def media(self) -> Media | None:
        """Of the rows; it changes with `features`. None: no row has media."""

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        """Executes a plan in a shorter way, with everything that it changes in rows, where it repeats the
        last one, each row one token further. None: it does not, and is to be launched. Called only where
        nothing is drafted. Raises PlanError."""

    def step(self, plan: worker_pb2.StepPlan) -> AbstractContextManager[object]:
        """Returns a context that surrounds the whole launch of a plan, entered before anything changes."""

    def update_rows(self, plan: worker_pb2.StepPlan, appended: list[int], token_ids: Integers) -> None:
        """Follows changes that the plan made to the row table.

        appended: rows [P] that the core appended token_ids [P] to.
        """

    def swap(self, swaps: Swaps) -> None:
        """Copies blocks to host memory and back."""

    def copy_blocks(self, sources: Integers, targets: Integers) -> None:
        """Copies blocks within the cache. sources, targets: [C]."""

    def upload(self, step: Step, wanted: Wanted) -> None:
        """Makes the model's inputs of a step. wanted: what is read of its sampled rows; a token is sampled,
        whatever the row's parameters are."""

    def forward(self) -> StepOutputs:
        """Runs the model on the uploaded step."""

    def begin(self) -> BegunStep | None:
        """Begins the uploaded step of a micro-batch. None: forward() computes all of it."""

    def submit(self, clock: LaunchClock) -> Completion:
        """Ends the launch of a step."""
