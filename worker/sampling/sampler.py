"""The sampler: from logits to one token per row. Steps, formulas and order: docs/sampling.md.

A token is a function of its row's logits, parameters and history and of (seed, sequence index, position), and
independent of the other rows of the batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from kernels.api import Bitmask, PenaltyHistory, SamplingColumns, SamplingOps
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.grammar.rows import GrammarRows
from worker.sampling.logprobs.scores import PIECE, SampledScores
from worker.sampling.sequence import NewSequence, RowStates
from worker.sampling.token_bans import TokenBans
from worker.step.embeddings import tokens_of_prompt


class LogitAdjustments(RowStates):
    """Penalties, bias, and tokens that a request or a grammar allows, of the rows that have any. The sampler
    tells the grammars of rows that begin and end.

    A history is the prompt and the output, or the output alone without a repetition penalty, since the prompt
    then does not count.
    """

    def __init__(self, grammars: GrammarRows, vocab_size: int, ops: SamplingOps) -> None:
        self._grammars, self._vocab_size, self._ops = grammars, vocab_size, ops
        self._histories: dict[int, PenaltyHistory] = {}
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # ids [N, 1] int64, bias [N, 1] float32
        self._masks: dict[int, Bitmask] = {}

    def __contains__(self, row: int) -> bool:
        return any(row in state for state in (self._histories, self._bias, self._masks, self._grammars))

    def add_row(self, row: int, sequence: NewSequence) -> None:
        words = sequence.allowed(self._vocab_size)
        if words is not None:
            self._masks[row] = Bitmask(words, words.ctypes.data)
        if bias := sequence.bias(self._vocab_size):
            self._bias[row] = torch.tensor([*bias])[:, None], torch.tensor([*bias.values()])[:, None]
        strengths, output = sequence.penalties(), sequence.output_ids
        if strengths is not None:
            counts = np.bincount(np.array(output, np.int64), minlength=self._vocab_size)
            tokens = output if strengths[0] == 1 else sequence.prompt_ids + output
            self._histories[row] = PenaltyHistory(strengths, tokens, counts.astype(np.int32))

    def fork_row(self, row: int, source_row: int) -> None:
        if source_row in self._histories:
            self._histories[row] = self._histories[source_row].copy()
        if source_row in self._bias:
            self._bias[row] = self._bias[source_row]
        if source_row in self._masks:
            self._masks[row] = self._masks[source_row]

    def remove_row(self, row: int) -> None:
        for state in (self._histories, self._bias, self._masks):
            state.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: list[int]) -> None:
        """Changes logits [A, V] of rows [A] in place. A row whose grammar has failed keeps no token."""
        if users := _users(rows, self._histories):
            self._ops.penalize(logits, users, [self._histories[rows[user]] for user in users])
        if users := _users(rows, self._bias):
            ids, bias = zip(*(self._bias[rows[user]] for user in users), strict=True)
            index = torch.tensor(users).repeat_interleave(torch.tensor([*map(len, ids)]))
            self._ops.add_logit_bias(logits, index, torch.cat(ids), torch.cat(bias))
        if users := _users(rows, self._masks):
            self._ops.mask(logits, users, [self._masks[rows[user]] for user in users])
        if users := self._grammars.users(rows):
            matchers = self._grammars.matchers([rows[user] for user in users])
            self._ops.mask(logits, users, [Bitmask(each.words, each.address) for each in matchers])

    def record(self, rows: list[int], tokens: list[int]) -> None:
        """Appends new tokens [A] to the outputs of rows [A]; negative: there is none."""
        self._grammars.record(rows, lambda: tokens)
        for row, token in zip(rows, tokens, strict=True):
            if row in self._histories:
                self._histories[row].append(max(token, 0))


def _users(rows: list[int], state: Container[int]) -> list[int]:
    """Returns the indexes [U] of those of the rows [A] that have state."""
    return [index for index, row in enumerate(rows) if row in state]


class RowSampler(ABC):
    """Rows that sample: parameters in columns, and what changes logits before the choice. A row that is not
    in use has undefined entries in the columns. Base class of samplers."""

    def __init__(
        self,
        columns: SamplingColumns,
        vocab_size: int,
        ops: SamplingOps,
        grammars: GrammarRows,
        states: Sequence[RowStates],
        rows_per_piece: int,
    ) -> None:
        """states: in the order in which they change logits; they do not commute. rows_per_piece: of which
        copies are made at a time."""
        self.columns, self.grammars = columns, grammars
        self._vocab_size, self._ops, self._states = vocab_size, ops, states
        self._rows_per_piece = rows_per_piece

    @torch.inference_mode()
    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: tokens that the sequence already has; the next one's position is their
        number. Raises ValueError when allowed_token_ids has no token of the vocabulary.
        """
        self.remove_row(row)
        sequence = NewSequence(new, tokens_of_prompt(new, prompt_ids), output_ids)
        values = {name: sequence.scalar(name, neutral) for name, neutral in SamplingColumns.NEUTRAL.items()}
        if values["top_k"] >= self._vocab_size:
            values["top_k"] = 0
        index, position = new.sequence_index, len(output_ids)
        self.columns.set_row(row, **values, seed=new.sampling.seed, sequence_index=index, position=position)
        self.grammars.add_row(row, new, prompt_ids, output_ids)
        for state in self._states:
            state.add_row(row, sequence)
        self._begin(row)

    @torch.inference_mode()
    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.remove_row(row)
        self.columns.words[:, row] = self.columns.words[:, source_row]
        self.columns["sequence_index"][row] = sequence_index
        self.grammars.fork_row(row, source_row, sequence_index)
        for state in self._states:
            state.fork_row(row, source_row)
        self._begin(row)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self.grammars.remove_row(row)
        for state in self._states:
            state.remove_row(row)

    @torch.inference_mode()
    def beam_candidates(
        self, logits: torch.Tensor, rows: list[int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the K = count most probable tokens of beams: ids [B, K] int64, of equals the lower first,
        and log-probabilities [B, K] float32. logits: [B, V] float32.

        As in transformers, penalties and masks apply after the log-softmax. NaN where the model left a row
        nothing to choose from. The output of rows does not change: see append().
        """
        ids, logprobs = [], []
        for start in range(0, len(rows), self._rows_per_piece):
            piece = slice(start, start + self._rows_per_piece)
            scores = self._ops.log_softmax(logits[piece])
            self._process(scores, rows[piece])
            best = self._ops.ranking(scores, count)
            broken = ~scores.amax(-1, keepdim=True).isfinite()
            ids.append(best)
            logprobs.append(scores.gather(1, best).masked_fill_(broken, torch.nan))
        return _joined(ids), _joined(logprobs)

    @abstractmethod
    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends tokens [A] int64 to the output of rows [A]."""

    @abstractmethod
    def _begin(self, row: int) -> None:
        """Is called when a row has begun."""

    @abstractmethod
    def _process(self, scores: torch.Tensor, rows: list[int]) -> None:
        """Applies penalties, bias and masks to scores [A, V] of rows [A], in place."""


class Sampler(RowSampler):
    """Chooses tokens for rows on a CPU."""

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device,
        ops: SamplingOps | None = None,
        grammars: GrammarRows | None = None,
    ) -> None:
        """Rows are numbers below max_num_rows. ops: compiled ones, which choose the same tokens as torch;
        None: torch chooses. grammars: of the same rows; None: a row that comes with one fails."""
        columns, grammars = SamplingColumns(max_num_rows), grammars or GrammarRows(vocab_size, None)
        ops = ops or SamplingOps()
        self._adjustments = LogitAdjustments(grammars, vocab_size, ops)
        self._bans = TokenBans(columns, vocab_size, device, ops)
        states, piece = (self._adjustments, self._bans), max(1, PIECE // vocab_size)
        super().__init__(columns, vocab_size, ops, grammars, states, piece)
        self._processed: set[int] = set()  # rows whose logits change before the choice

    def remove_row(self, row: int) -> None:
        self._processed.discard(row)
        super().remove_row(row)

    def _begin(self, row: int) -> None:
        if any(row in state for state in self._states):
            self._processed.add(row)

    def needs_logits(self, rows: Integers, elsewhere: bool) -> bool:
        """Returns whether the rows [A] must sample(): else their tokens may be chosen from the model's logits
        by the columns alone, and be given to take(). elsewhere: some are drawn at other positions than the
        columns have, as several of a row are, or by the columns of other rows than compute the logits."""
        if not self._processed.isdisjoint(rows.tolist()):
            return True
        return elsewhere and bool(self.columns["temperature"][rows].any())

    def untold(self) -> AbstractContextManager[None]:
        """Returns a context in which other ranks are not told what is sampled: they do not wait for it."""
        return nullcontext()

    def take(self, chosen: torch.Tensor, rows: list[int], logits: Callable[[], torch.Tensor]) -> Integers:
        """Appends tokens that are chosen already to the output of A distinct rows. Returns them, [A].

        chosen: [A] int64, UNKNOWN where torch is to choose, which then calls logits: see sample().
        """
        tokens = chosen.clone()
        self._ops.choose_unknown(tokens, logits, rows, self.columns)
        self.append(rows, tokens)
        taken: Integers = tokens.numpy()
        return taken

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None = None
    ) -> torch.Tensor:
        """Samples a token for each of A distinct rows and appends it to their output. Returns tokens [A]
        int64.

        logits: [A, V] float32, contiguous, overwritten. scores: sees the logits before that, and the tokens.

        -1 (worker.step.beams.NO_TOKEN) where a row's largest logit is not finite after the masks: NaN or +inf
        anywhere (the model failed), or -inf everywhere. Such a row must end; its later tokens are undefined.
        """
        copied = self._ops.copies_logits or (scores is not None and scores.watches(rows))
        tokens = self._sample_in_pieces(logits, rows, scores) if copied else self._sample(logits, rows)
        self.append(rows, tokens)
        return tokens

    @torch.inference_mode()
    def _sample_in_pieces(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None
    ) -> torch.Tensor:
        """Samples some rows at a time; see sample()."""
        pieces = []
        for start in range(0, max(1, len(rows)), self._rows_per_piece):
            piece = slice(start, start + self._rows_per_piece)
            changes = not self._processed.isdisjoint(rows[piece])
            kept = scores.keep(logits[piece], rows[piece], changes) if scores is not None else None
            pieces.append(self._sample(logits[piece], rows[piece]))
            if scores is not None and kept is not None:
                scores.add(kept, rows[piece], pieces[-1])
        return _joined(pieces)

    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        if not self._processed.isdisjoint(rows):
            self._record(rows, tokens.tolist())
        positions = self.columns.positions
        for row in rows:
            positions[row] += 1

    @torch.inference_mode()
    def _record(self, rows: list[int], tokens: list[int]) -> None:
        """Appends tokens [A] to the states that depend on the output."""
        self._adjustments.record(rows, tokens)
        self._bans.record(rows, tokens)

    @torch.inference_mode()
    def _process(self, scores: torch.Tensor, rows: list[int]) -> None:
        self._adjustments.apply(scores, rows)
        self._bans.apply(scores, rows)

    def _sample(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Applies processors and chooses tokens [A]. For rows without processors that is one compiled call,
        with little else in Python."""
        if not self._processed.isdisjoint(rows):
            self._process(logits, rows)
        return self._ops.choose_tokens(logits, rows, self.columns)


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    """Returns pieces one after another; a single one without a copy."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
