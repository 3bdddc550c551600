"""The sampler on a CUDA device: worker.sampling.sampler.Sampler, in kernels. What it computes:
docs/sampling.md.

State is on the device, by row: what is sampled in one step changes it for the next without a look from the
host. The host keeps what says which kernels a step needs, and never waits.
"""

from collections.abc import Sequence
from enum import IntFlag

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.ops.logits.log_softmax import log_softmax
from kernels.triton.sampling.filtered_sample import filtered_sample
from kernels.triton.sampling.sample import argmax, sample
from kernels.triton.sampling.tile_stats import tile_stats
from kernels.triton.sampling.typical_p import typical_p
from kernels.triton.step.record_tokens import History, record_tokens
from pagewire.internal.v1 import worker_pb2
from worker.cuda.logprobs import PendingSampledScores
from worker.cuda.sampling.logit_adjustments import Adjusting
from worker.cuda.sampling.row_parameters import (
    ADJUST_SLOT,
    ALIGNMENT,
    OUTPUT_SLOT,
    POSITION,
    DeviceParameters,
    Parameters,
    RowSlots,
)
from worker.cuda.sampling.token_bans import Forbidding
from worker.cuda.top_n import top_tokens
from worker.sampling.batch import NewSequence
from worker.sampling.state import SamplingState


class Work(IntFlag):
    """What a step's rows need, between them, beyond taking the likeliest token."""

    NONE = 0
    DRAW = 1
    FILTER = 2
    TYPICAL = 4
    ADJUST = 8
    FORBID = 16


class CudaSampler:
    """Chooses tokens for rows, and keeps of each row what the choice depends on.

    max_num_rows: rows are numbers below it. vocab_size: V. sample() is begin(), which is for the host, and
    choose(), which is kernels alone. With Work.NONE or Work.DRAW a graph can capture choose(): all that it
    reads and writes stays where it is. The lists of the others grow.
    """

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._adjusting = Adjusting(max_num_rows, vocab_size, device)
        self._forbidding = Forbidding(max_num_rows, vocab_size, device)
        self.state = SamplingState(max_num_rows, vocab_size, (self._adjusting, self._forbidding))
        self._parameters = DeviceParameters(self.state, max_num_rows, device)
        self._work = np.zeros(max_num_rows, np.uint8)
        self._every = torch.arange(max_num_rows + ALIGNMENT, dtype=torch.int32, device=device)

    @property
    def padding(self) -> int:
        """The row that pads steps."""
        return self._parameters.padding

    @torch.inference_mode()
    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: tokens that the sequence already has; the next one's position is
        their number. Raises ValueError when allowed_token_ids has no token of the vocabulary.
        """
        sequence = NewSequence(new, prompt_ids, output_ids)
        self.state.add_row(row, sequence)
        slots = self._slots(row)
        self._parameters.set_row(row, slots)
        self._work[row] = _work_of(sequence, slots.adjust)

    @torch.inference_mode()
    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.state.fork_row(row, source_row, sequence_index)
        self._parameters.set_row(row, self._slots(row))
        self._work[row] = self._work[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self.state.remove_row(row)

    def _slots(self, row: int) -> RowSlots:
        """Returns where the processors keep the state of a row."""
        forbidding = self._forbidding
        return RowSlots(self._adjusting.slot(row), forbidding.slot(row), forbidding.output_slot(row))

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, rows: Sequence[int], scores: PendingSampledScores | None = None
    ) -> torch.Tensor:
        """logits [A, V] float32, contiguous, overwritten; rows: A distinct ones -> tokens [A] int64.

        scores: what is to see the logits before they are overwritten, and the tokens.

        The tokens become part of the rows' output. -1 where a row's largest logit is not finite after the
        masks: see worker.sampling.sampler.
        """
        if not len(rows):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        kept = scores.keep(logits, rows) if scores is not None else None
        work = self.begin(rows)
        tokens = self.choose(logits, self._parameters.index(rows), work)
        if scores is not None and kept is not None:
            scores.add(kept, rows, tokens)
        return tokens

    def begin(self, rows: Sequence[int]) -> Work:
        """The host's part of a step that these rows sample in, each of them once: brings over what is new,
        and says what they need. To be followed by choose()."""
        index = np.asarray(rows)
        work = Work(int(np.bitwise_or.reduce(self._work[index])))
        positions = self.state.position_column[index]
        if self._forbidding.concerns(index, positions):
            work |= Work.FORBID
        self._advance(index, positions)
        return work

    def choose(self, logits: torch.Tensor, row_index: torch.Tensor, work: Work) -> torch.Tensor:
        """The device's part: logits [A, V], row_index [P] integers -> tokens [A] int64, which become output.

        P is a multiple of columns.ALIGNMENT and at least A. What is beyond the rows is `padding`, and its
        tokens mean nothing.
        """
        if work == Work.NONE:
            tokens = argmax(logits)
        else:
            parameters = self._parameters.gather(row_index)
            self._process(logits, parameters, work)
            tokens = _choose(logits, parameters, work)
        record_tokens(tokens, row_index[: logits.shape[0]], self._history())
        return tokens

    @torch.inference_mode()
    def beam_candidates(
        self, logits: torch.Tensor, rows: Sequence[int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the K = count most probable tokens of beams: ids [B, K] int64, of equals the lower first,
        and log-probabilities [B, K] float32. logits: [B, V] float32. See worker.sampling.sampler."""
        self._parameters.upload_changes()
        scores = log_softmax(logits)
        parameters = self._parameters.gather(self._parameters.index(rows))
        self._process(scores, parameters, Work.ADJUST | Work.FORBID)
        best = top_tokens(scores, count)
        broken = ~scores.amax(-1, keepdim=True).isfinite()
        return best, scores.gather(1, best).masked_fill_(broken, torch.nan)

    @torch.inference_mode()
    def append(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """The tokens [A] int64 become part of the rows' output."""
        index = np.asarray(rows)
        self._advance(index, self.state.position_column[index])
        record_tokens(tokens, self._parameters.index(index)[: len(rows)], self._history())

    def _advance(self, rows: Integers, positions: Integers) -> None:
        """The host's part of one more token for each of the rows [A], which have so many [A]."""
        self._forbidding.make_room(rows, positions)
        self._parameters.upload_changes()
        self.state.position_column[rows] += 1

    def _process(self, scores: torch.Tensor, parameters: Parameters, work: Work) -> None:
        """Penalties, bias and masks, in place."""
        count = scores.shape[0]
        if work & Work.ADJUST:
            self._adjusting.apply(scores, self._every[:count], parameters.adjust_slots[:count])
        if work & Work.FORBID:
            positions = parameters.draws.positions[:count]
            self._forbidding.apply(scores, parameters.forbid_slots[:count], positions)

    def _history(self) -> History:
        """What the rows have said, as far as anybody asks."""
        parameters = self._parameters
        return History(
            parameters.on_device(POSITION),
            parameters.on_device(ADJUST_SLOT),
            parameters.on_device(OUTPUT_SLOT),
            self._adjusting.counts,
            self._forbidding.outputs,
        )


def _choose(logits: torch.Tensor, parameters: Parameters, work: Work) -> torch.Tensor:
    """logits [A, V] after penalties and masks, overwritten -> tokens [A]."""
    if not work & Work.DRAW:
        return argmax(logits)
    draws, filters = parameters.draws, parameters.filters
    if work & Work.TYPICAL:
        typical_p(logits, draws.temperature, filters, parameters.typical_p)
    stats = tile_stats(logits, draws.temperature, groups=bool(work & Work.FILTER))
    tokens = sample(logits, draws, stats)
    if work & Work.FILTER:
        filtered_sample(logits, draws, filters, stats, tokens)
    return tokens


def _work_of(sequence: NewSequence, adjust_slot: int) -> Work:
    """What a row needs in each of its steps."""
    work = Work.ADJUST if adjust_slot >= 0 else Work.NONE
    if sequence.scalar("temperature", 1.0) == 0:
        return work
    neutral = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
    if any(sequence.scalar(name, value) != value for name, value in neutral.items()):
        work |= Work.FILTER
    if sequence.scalar("typical_p", 1.0) < 1:
        work |= Work.TYPICAL
    return work | Work.DRAW
