"""The sampler on a CUDA device: worker.sampling.sampler.Sampler in Triton kernels; see docs/sampling.md.

Parameters and histories of rows are on the device: tokens sampled in one step update them for the next step
without the host. The host keeps what decides which kernels a step needs, and never waits.
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
from worker.cuda.sampling.logit_adjustments import LogitAdjustments
from worker.cuda.sampling.logprobs import PendingSampledScores
from worker.cuda.sampling.row_parameters import (
    ADJUST_SLOT,
    ALIGNMENT,
    OUTPUT_SLOT,
    POSITION,
    DeviceParameters,
    Parameters,
    RowSlots,
)
from worker.cuda.sampling.token_bans import TokenBans
from worker.cuda.sampling.top_n import top_tokens
from worker.grammar.rows import GrammarRows
from worker.sampling.batch import NewSequence
from worker.sampling.state import SamplingState


class Work(IntFlag):
    """What the rows of a step need together, beyond argmax."""

    NONE = 0
    DRAW = 1
    FILTER = 2
    TYPICAL = 4
    ADJUST = 8
    FORBID = 16


PLAIN = (Work.NONE, Work.DRAW, Work.DRAW | Work.FILTER)
"""What graphs are captured for: inputs and outputs of the choice keep their addresses. The lists of the other
kinds of work grow."""


class CudaSampler:
    """Chooses tokens for rows. `state` has what the choice depends on, by row.

    sample() is begin(), the part of the host, and choose(), which only launches kernels. With work that is
    PLAIN a graph can capture choose().
    """

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarRows | None = None,
    ) -> None:
        """grammars: of the same rows; None: a row that comes with one fails."""
        self.grammars = grammars or GrammarRows(vocab_size, None)
        self._adjustments = LogitAdjustments(max_num_rows, vocab_size, device)
        self._bans = TokenBans(max_num_rows, vocab_size, device)
        self.state = SamplingState(max_num_rows, vocab_size, (self._adjustments, self._bans))
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
        self.grammars.add_row(row, new, prompt_ids, output_ids)
        self.state.add_row(row, sequence)
        slots = self._slots(row)
        self._parameters.set_row(row, slots)
        self._work[row] = _work_of(sequence, slots.adjust)

    @torch.inference_mode()
    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.grammars.fork_row(row, source_row, sequence_index)
        self.state.fork_row(row, source_row, sequence_index)
        self._parameters.set_row(row, self._slots(row))
        self._work[row] = self._work[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self.grammars.remove_row(row)
        self.state.remove_row(row)

    def _slots(self, row: int) -> RowSlots:
        """Returns where the processors keep the state of a row."""
        forbidding = self._bans
        return RowSlots(self._adjustments.slot(row), forbidding.slot(row), forbidding.output_slot(row))

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        scores: PendingSampledScores | None = None,
        row_index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Samples a token for each of A distinct rows and appends it to their output. Returns tokens [A]
        int64.

        logits: [A, V] float32, contiguous, overwritten. scores: sees the logits before that, and the tokens.
        row_index: the rows, as choose() takes them; None: they are uploaded.

        -1 where a row's largest logit is not finite after the masks: see worker.sampling.sampler.
        """
        if not len(rows):
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        kept = scores.keep(logits, rows) if scores is not None else None
        self._allow(rows)
        work = self.begin(rows)
        tokens = self.choose(logits, self._parameters.index(rows) if row_index is None else row_index, work)
        if scores is not None and kept is not None:
            scores.add(kept, rows, tokens)
        return tokens

    def needs(self, rows: Sequence[int]) -> Work:
        """Returns what a step needs in which these distinct rows sample."""
        index = np.asarray(rows)
        work = Work(int(np.bitwise_or.reduce(self._work[index])))
        concerned = self._bans.concerns(index, self.state.position_column[index])
        return work | Work.FORBID if concerned else work

    def begin(self, rows: Sequence[int]) -> Work:
        """Uploads new rows and returns what a step needs in which these distinct rows sample. Call choose()
        next, or its graph."""
        work, index = self.needs(rows), np.asarray(rows)
        self._advance(index, self.state.position_column[index])
        return work

    def choose(self, logits: torch.Tensor, row_index: torch.Tensor, work: Work) -> torch.Tensor:
        """Launches the choice of tokens [A] int64, which are appended to the output. logits: [A, V].

        row_index: [P] integers, P >= A a multiple of row_parameters.ALIGNMENT. Rows behind the sampled ones
        are `padding`; their tokens are undefined.
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
        self._allow(rows)
        scores = log_softmax(logits)
        parameters = self._parameters.gather(self._parameters.index(rows))
        self._process(scores, parameters, Work.ADJUST | Work.FORBID)
        best = top_tokens(scores, count)
        broken = ~scores.amax(-1, keepdim=True).isfinite()
        return best, scores.gather(1, best).masked_fill_(broken, torch.nan)

    @torch.inference_mode()
    def append(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Appends tokens [A] int64 to the output of rows [A]."""
        index = np.asarray(rows)
        self._advance(index, self.state.position_column[index])
        record_tokens(tokens, self._parameters.index(index)[: len(rows)], self._history())

    def _allow(self, rows: Sequence[int]) -> None:
        """Uploads the masks of those rows [A] that have grammars. Waits for the tokens before them."""
        members = [rows[user] for user in self.grammars.users(rows)]
        if members:
            self._adjustments.allow(members, self.grammars.words(members))

    def _advance(self, rows: Integers, positions: Integers) -> None:
        """Counts one more token of each of the rows [A] on the host. positions: [A] before it."""
        self._bans.make_room(rows, positions)
        self._parameters.upload_changes()
        self.state.position_column[rows] += 1

    def _process(self, scores: torch.Tensor, parameters: Parameters, work: Work) -> None:
        """Applies penalties, bias and masks to scores [A, V], in place."""
        count = scores.shape[0]
        if work & Work.ADJUST:
            self._adjustments.apply(scores, self._every[:count], parameters.adjust_slots[:count])
        if work & Work.FORBID:
            positions = parameters.draws.positions[:count]
            self._bans.apply(scores, parameters.forbid_slots[:count], positions)

    def _history(self) -> History:
        """Returns the tables that sampled tokens are recorded in."""
        parameters = self._parameters
        return History(
            parameters.on_device(POSITION),
            parameters.on_device(ADJUST_SLOT),
            parameters.on_device(OUTPUT_SLOT),
            self._adjustments.counts,
            self._bans.outputs,
        )


def _choose(logits: torch.Tensor, parameters: Parameters, work: Work) -> torch.Tensor:
    """Returns tokens [A] for logits [A, V] after penalties and masks, which it overwrites."""
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
    """Returns what a row needs in each of its steps."""
    work = Work.ADJUST if adjust_slot >= 0 else Work.NONE
    if sequence.scalar("temperature", 1.0) == 0:
        return work
    neutral = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
    if any(sequence.scalar(name, value) != value for name, value in neutral.items()):
        work |= Work.FILTER
    if sequence.scalar("typical_p", 1.0) < 1:
        work |= Work.TYPICAL
    return work | Work.DRAW
