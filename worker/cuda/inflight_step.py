"""A step that was launched: what of it is on its way to the host, and the result that comes of that.

Everything that the result needs of rows is taken when the step is launched: the next plan, which may be
launched before the result is there, may end them.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.cuda.device import Device, Event
from worker.cuda.logprobs import PromptScores, SampledScores
from worker.step.beams import Offers, put_offers
from worker.step.plan_reader import token_column


@dataclass(frozen=True)
class Drawn:
    """What rows that sample are given."""

    tokens: torch.Tensor  # [A - B] int64
    scores: SampledScores


@dataclass(frozen=True)
class Offered:
    """What beams offer; see worker.step.beams."""

    token_ids: torch.Tensor  # [B, K] int64
    logprobs: torch.Tensor  # [B, K] float32
    counts: Integers  # [B]: of K


class Flight:
    """One step, from launch to landing. Times are on the monotonic clock, in nanoseconds."""

    def __init__(self, step: int, device: Device) -> None:
        self._step, self._device = step, device
        self._launched = self._prepared = self._computed = time.monotonic_ns()
        self._beams: npt.NDArray[np.bool_] | None = None  # [A]: which of those that sample are beams
        self._drawn: Drawn | None = None
        self._offered: Offered | None = None
        self._prompts = PromptScores()
        self._event: Event | None = None

    def prepared(self) -> None:
        """The plan's changes and the inputs are launched."""
        self._prepared = time.monotonic_ns()

    def computed(self) -> None:
        """And so is the model."""
        self._computed = time.monotonic_ns()

    def take_prompts(self, prompts: PromptScores) -> None:
        """Log-probabilities of prompts."""
        self._prompts = prompts

    def take(self, beams: npt.NDArray[np.bool_], drawn: Drawn | None, offered: Offered | None) -> None:
        """What A rows chose, or offer: beams [A] are those that do. Sends it on its way."""
        fetch, self._beams = self._device.fetch, beams
        if drawn is not None:
            self._drawn = Drawn(fetch(drawn.tokens), drawn.scores)
        if offered is not None:
            self._offered = Offered(fetch(offered.token_ids), fetch(offered.logprobs), offered.counts)

    def launched(self) -> None:
        """Everything is."""
        self._event = self._device.record()

    def is_done(self) -> bool:
        """Whether result() would not wait."""
        assert self._event is not None
        return self._event.query()

    def result(self, free_since: int) -> worker_pb2.StepResult:
        """free_since: when the device was done with the step before. Waits."""
        assert self._event is not None
        self._event.synchronize()  # the step's one wait
        result = worker_pb2.StepResult(step=self._step, started_ns=max(self._launched, free_since))
        result.prompt_logprobs.extend(self._prompts.columns())
        if self._beams is not None:
            self._write_tokens(self._beams, result)
        ended = time.monotonic_ns()
        result.duration_us = (ended - result.started_ns) // 1000
        if self._computed > self._launched:
            result.prepare_us = (self._prepared - self._launched) // 1000
            result.forward_us = (self._computed - self._prepared) // 1000
            result.sample_us = (ended - self._computed) // 1000
        return result

    def _write_tokens(self, beams: npt.NDArray[np.bool_], result: worker_pb2.StepResult) -> None:
        """beams: [A]."""
        tokens = np.empty(len(beams), np.int64)
        if self._drawn is not None:
            tokens[~beams] = self._drawn.tokens.numpy()
            columns = self._drawn.scores.columns()
            if columns is not None:
                result.logprobs.CopyFrom(columns)
        if self._offered is not None:
            offers = Offers(self._offered.token_ids.numpy(), self._offered.logprobs.numpy())
            tokens[beams] = put_offers(offers, self._offered.counts, result)
        result.token_ids = token_column(tokens)
