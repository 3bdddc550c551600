"""The sampler on a CUDA device: worker.sampling.sampler.Sampler in Triton kernels; see docs/sampling.md.

Parameters and histories of rows are on the device: tokens sampled in one step update them for the next step
without the host. The host keeps what decides which kernels a step needs, and never waits.
"""

from collections.abc import Sequence
from enum import IntFlag

import numpy as np
import numpy.typing as npt
import torch

from kernels.api import SamplingColumns
from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.adjust_logits import Adjustments
from kernels.triton.sampling.draws import RowParameters
from kernels.triton.sampling.ops import TritonSampling
from kernels.triton.step.token_history import History
from worker.cuda.sampling.row_parameters import ALIGNMENT, DeviceParameters, RowSlots
from worker.grammar.rows import GrammarRows
from worker.parallel import ONE_RANK, ParallelGroup
from worker.sampling.logprobs.scores import SampledScores
from worker.sampling.sampler import RowSampler
from worker.sampling.sequence import NO_PENALTIES, NewSequence, RowStates
from worker.sampling.token_bans import Table, TokenBans
from worker.upload import upload

ALL = -1
"""A word of an allowed set that contains every token."""


class DeviceAdjustments(RowStates):
    """Penalties, bias and allowed tokens: dense state of every row, 4.25 bytes per token of the vocabulary,
    650 KB for 152,000. It is allocated at start-up, so that no request can find the device full. Lists of
    biased tokens grow with the requests."""

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        num_words = -(-vocab_size // 32)

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros((max_num_rows, *shape), dtype=torch.int32, device=device)

        self._strengths = torch.zeros((max_num_rows, 3), dtype=torch.float32, device=device)
        self.counts = integers(vocab_size)
        """[rows, V]: how often each token is in the row's output."""
        self._prompt, self._allowed = integers(num_words), integers(num_words)
        self._num_biased = integers(1)
        self._bias_ids = Table((1,), 0, np.int32, device)
        self._bias = Table((1,), 0.0, np.float32, device)
        self._users: set[int] = set()

    def __contains__(self, row: int) -> bool:
        return row in self._users

    def add_row(self, row: int, sequence: NewSequence) -> None:
        strengths, bias = sequence.penalties(), sequence.bias(self._vocab_size)
        allowed = sequence.allowed(self._vocab_size)
        if strengths is None and not bias and allowed is None and not sequence.new.grammar:
            return
        self._users.add(row)
        self._strengths[row] = self._upload(strengths or list(NO_PENALTIES.values()), np.float32)
        self._num_biased[row] = self._upload([len(bias)], np.int32)
        self._bias_ids.set(row, list(bias))
        self._bias.set(row, list(bias.values()))
        self._allowed[row].fill_(ALL)
        if allowed is not None:
            self._allowed[row] = upload(allowed, self._device)
        if strengths is not None:
            self._count(row, sequence)

    def allow(self, rows: Sequence[int], words: npt.NDArray[np.int32]) -> None:
        """Sets the allowed tokens of rows [U] that have state. words: [U, W], see worker.grammar.matcher."""
        index = upload(np.array(rows, np.int64), self._device)
        self._allowed.index_copy_(0, index, upload(words, self._device))

    def remove_row(self, row: int) -> None:
        self._users.discard(row)

    def fork_row(self, row: int, source_row: int) -> None:
        if source_row not in self._users:
            return
        self._users.add(row)
        for tensor in (self._strengths, self.counts, self._prompt, self._num_biased, self._allowed):
            tensor[row] = tensor[source_row]
        for table in (self._bias_ids, self._bias):
            table.copy(row, source_row)

    def apply(self, logits: torch.Tensor, batch_index: torch.Tensor, slots: torch.Tensor) -> None:
        """Adjusts logits [A, V] float32 in place. batch_index: [A] 0, 1, ...; slots: [A], -1: none."""
        state = Adjustments(
            self._strengths,
            self.counts,
            self._prompt,
            self._bias_ids.data,
            self._bias.data,
            self._num_biased,
            self._allowed,
        )
        TritonSampling.adjust_logits(logits, batch_index, slots, state)

    def _count(self, row: int, sequence: NewSequence) -> None:
        """Counts prompt and output. Rows without penalties keep undefined counts, which have no effect."""
        self.counts[row].zero_()
        self._prompt[row].zero_()
        tokens = self._upload(sequence.prompt_ids + sequence.output_ids, np.int32)
        TritonSampling.count_tokens(tokens, len(sequence.prompt_ids), row, self.counts, self._prompt)

    def _upload(self, values: list[float] | list[int], dtype: type) -> torch.Tensor:
        return upload(np.array(values, dtype), self._device)


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


class CudaSampler(RowSampler):
    """Chooses tokens for rows on a CUDA device.

    sample() is begin(), the part of the host, and choose(), which only launches kernels. With work that is
    PLAIN a graph can capture choose().

    Of several ranks all keep parameters and histories, rank 0 chooses, and copies its tokens to the others.
    """

    group: ParallelGroup = ONE_RANK

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device,
        grammars: GrammarRows | None = None,
    ) -> None:
        """grammars: of the same rows; None: a row that comes with one fails."""
        columns, grammars = SamplingColumns(max_num_rows), grammars or GrammarRows(vocab_size, None)
        self._kernels = TritonSampling()
        self._adjustments = DeviceAdjustments(max_num_rows, vocab_size, device)
        self._bans = TokenBans(columns, vocab_size, device, self._kernels)
        states = self._adjustments, self._bans
        super().__init__(columns, vocab_size, self._kernels, grammars, states, max_num_rows)
        self._parameters = DeviceParameters(columns, device)
        self._work = np.zeros(max_num_rows, np.uint8)
        self._every = torch.arange(max_num_rows + ALIGNMENT, dtype=torch.int32, device=device)

    @property
    def padding(self) -> int:
        """The row that pads steps."""
        return self._parameters.padding

    def _begin(self, row: int) -> None:
        """Sets where the processors keep the state of a row, and what it needs in each of its steps."""
        uses, adjusted = self.columns.uses, row in self._adjustments
        users = RowSlots(adjusted, row in self._bans, self._bans.records_output(row))
        self._parameters.set_row(row, RowSlots(*(row if used else -1 for used in users)))
        work = Work.ADJUST if adjusted else Work.NONE
        if self.columns["temperature"][row] > 0:
            work |= Work.DRAW
            work |= Work.FILTER if uses(row, *self._kernels.FILTERED) else Work.NONE
            work |= Work.TYPICAL if uses(row, "typical_p") else Work.NONE
        self._work[row] = work

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        scores: SampledScores | None = None,
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
        return work | Work.FORBID if self._bans.concerns(index) else work

    def begin(self, rows: Sequence[int]) -> Work:
        """Uploads new rows and returns what a step needs in which these distinct rows sample. Call choose()
        next, or its graph."""
        work, index = self.needs(rows), np.asarray(rows)
        self._advance(index)
        return work

    def choose(self, logits: torch.Tensor, row_index: torch.Tensor, work: Work) -> torch.Tensor:
        """Launches the choice of tokens [A] int64, which are appended to the output. logits: [A, V], of rank
        0; of others their number is known.

        row_index: [P] integers, P >= A a multiple of row_parameters.ALIGNMENT. Rows behind the sampled ones
        are `padding`; their tokens are undefined.
        """
        if self.group.rank:
            tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            tokens = self._chosen(logits, row_index, work)
        tokens = self.group.from_first(tokens)
        self._kernels.record_tokens(tokens, row_index[: logits.shape[0]], self._history())
        return tokens

    def _chosen(self, logits: torch.Tensor, row_index: torch.Tensor, work: Work) -> torch.Tensor:
        if work == Work.NONE:
            return self._kernels.argmax(logits)
        parameters, slots = self._parameters.gather(row_index)
        self._mask(logits, parameters, slots, work)
        if work & Work.DRAW:
            return self._kernels.draw(logits, parameters, bool(work & Work.FILTER), bool(work & Work.TYPICAL))
        return self._kernels.argmax(logits)

    @torch.inference_mode()
    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        index = np.asarray(rows)
        self._advance(index)
        self._kernels.record_tokens(tokens, self._parameters.index(index)[: len(rows)], self._history())

    def _allow(self, rows: Sequence[int]) -> None:
        """Uploads the masks of those rows [A] that have grammars. Waits for the tokens before them."""
        members = [rows[user] for user in self.grammars.users(rows)]
        if members:
            self._adjustments.allow(members, self.grammars.words(members))

    def _advance(self, rows: Integers) -> None:
        """Counts one more token of each of the rows [A] on the host."""
        self._bans.make_room(rows)
        self._parameters.upload_changes()
        self.columns["position"][rows] += 1

    def _process(self, scores: torch.Tensor, rows: list[int]) -> None:
        self._parameters.upload_changes()
        self._allow(rows)
        parameters, slots = self._parameters.gather(self._parameters.index(rows))
        self._mask(scores, parameters, slots, Work.ADJUST | Work.FORBID)

    def _mask(
        self, scores: torch.Tensor, rows: RowParameters, slots: RowSlots[torch.Tensor], work: Work
    ) -> None:
        """Applies penalties, bias and masks to scores [A, V], in place."""
        count = scores.shape[0]
        if work & Work.ADJUST:
            self._adjustments.apply(scores, self._every[:count], slots.adjust[:count])
        if work & Work.FORBID:
            positions, state = rows.draws.positions[:count], self._bans.prohibitions
            self._kernels.prohibit(scores, slots.forbid[:count], positions, state)

    def _history(self) -> History:
        """Returns the tables that sampled tokens are recorded in."""
        positions, slots = self._parameters.positions, self._parameters.slots
        outputs = self._bans.prohibitions.outputs
        return History(positions, slots.adjust, slots.output, self._adjustments.counts, outputs)
