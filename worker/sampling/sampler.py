"""The sampler: from logits to one token per row. Steps, formulas and order: docs/sampling.md.

A token is a function of its row's logits, parameters and history and of (seed, sequence index, position), and
independent of the other rows of the batch.
"""

from enum import Enum

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.chooser import UNKNOWN, ChoiceParams, TokenChooser
from kernels.ops.logits.log_softmax import log_softmax
from kernels.ops.sampling.argmax import argmax
from kernels.ops.sampling.inverse_cdf import inverse_cdf
from kernels.ops.sampling.ranking import ranking
from pagewire.internal.v1 import worker_pb2
from worker.grammar.rows import GrammarRows
from worker.sampling.bad_tokens import BadTokens
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.candidates import Candidates, candidates_of
from worker.sampling.filters import filters_of
from worker.sampling.grammar_mask import GrammarMask
from worker.sampling.logit_bias import LogitBias
from worker.sampling.logprobs.sampled import SampledScores
from worker.sampling.penalties import Penalties
from worker.sampling.state import SamplingState
from worker.sampling.token_masks import AllowedTokens, MinTokens
from worker.sampling.uniforms import Uniforms

NO_TOKEN = -1
"""Returned by sample() for a row whose largest logit is not finite."""

PIECE = 1 << 19
"""Logits that torch works on at a time. Float64 temporaries of 4 MB are reused by the allocator; larger ones
are new pages from the system each time: 32 rows of 152,000 at temperature 0.8 take 51 ms in one piece and 18
ms in pieces."""


class _Choice(Enum):
    """How a row's token is chosen."""

    GREEDY = 1
    FROM_ALL = 2
    FROM_TOP_K = 3


class Sampler:
    """Chooses tokens for rows on a CPU. `state` has what the choice depends on, by row."""

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device,
        kernels: SamplingKernels | None = None,
        grammars: GrammarRows | None = None,
    ) -> None:
        """Rows are numbers below max_num_rows. kernels: compiled ones, which choose the same tokens as torch;
        None: torch chooses. grammars: of the same rows; None: a row that comes with one fails."""
        self._rows_per_piece = max(1, PIECE // vocab_size)
        penalties = Penalties(vocab_size, device, kernels)
        bad_tokens = BadTokens(vocab_size, device)
        self.grammars = grammars or GrammarRows(vocab_size, None)
        self._grammar_mask = GrammarMask(self.grammars, vocab_size, kernels)
        # The order is part of the API: these do not commute.
        self._processors = (
            penalties,
            LogitBias(vocab_size, device),
            AllowedTokens(vocab_size, device),
            self._grammar_mask,
            bad_tokens,
            MinTokens(vocab_size, device),
        )
        self._recorders = (penalties, bad_tokens)
        self.state = SamplingState(max_num_rows, vocab_size, self._processors)
        self._filters = filters_of(self.state)
        self._uniforms = Uniforms(self.state)
        self._processed: set[int] = set()  # rows whose logits change before the choice
        self._plain: set[int] = set()  # rows that take the largest of their logits as they are
        self._chooser = (
            TokenChooser(kernels, _choice_params(self.state), vocab_size) if kernels is not None else None
        )

    @torch.inference_mode()
    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: tokens that the sequence already has; the next one's position is
        their number. Raises ValueError when allowed_token_ids has no token of the vocabulary.
        """
        self.state.add_row(row, NewSequence(new, prompt_ids, output_ids))
        self._classify(row)

    @torch.inference_mode()
    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.state.fork_row(row, source_row, sequence_index)
        self._classify(row)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self._processed.discard(row)
        self._plain.discard(row)
        self.state.remove_row(row)

    def _classify(self, row: int) -> None:
        """Sets what a row that begins needs in each of its steps."""
        self._processed.discard(row)
        self._plain.discard(row)
        self._uniforms.forget(row)
        if self.state.is_processed(row):
            self._processed.add(row)
        elif self.state.temperature[row] == 0:
            self._plain.add(row)

    def all_greedy(self, rows: list[int]) -> bool:
        """Returns whether sample() would return kernels.ops.sampling.argmax for every row, whatever the
        logits. A caller that already has these tokens may append() them instead."""
        return self._plain.issuperset(rows)

    def sample(
        self, logits: torch.Tensor, rows: list[int], scores: SampledScores | None = None
    ) -> torch.Tensor:
        """Samples a token for each of A distinct rows and appends it to their output. Returns tokens [A]
        int64.

        logits: [A, V] float32, contiguous, overwritten. scores: sees the logits before that, and the tokens.

        NO_TOKEN where a row's largest logit is not finite after the masks: NaN or +inf anywhere (the model
        failed), or -inf everywhere. Such a row must end; its later tokens are undefined.
        """
        # torch copies the logits that it works on, and so do scores; compiled functions do not
        copied = self._chooser is None or (scores is not None and scores.watches(rows))
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
            kept = scores.keep(logits[piece], rows[piece]) if scores is not None else None
            pieces.append(self._sample(logits[piece], rows[piece]))
            if scores is not None and kept is not None:
                scores.add(kept, rows[piece], pieces[-1])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

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
            scores = log_softmax(logits[piece])
            self._process(scores, rows[piece])
            best = ranking(scores, count)
            broken = ~scores.amax(-1, keepdim=True).isfinite()
            ids.append(best)
            logprobs.append(scores.gather(1, best).masked_fill_(broken, torch.nan))
        return torch.cat(ids), torch.cat(logprobs)

    def append(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends tokens [A] int64 to the output of rows [A]."""
        if not self._processed.isdisjoint(rows):
            self._record(rows, tokens)
        self.state.advance(rows)

    @torch.inference_mode()
    def _record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends tokens [A] to the state of processors that depend on the output."""
        self._grammar_mask.record(rows, tokens)
        known = tokens.clamp(min=0)  # NO_TOKEN is no index
        for recorder in self._recorders:
            recorder.record(rows, known)

    @torch.inference_mode()
    def _process(self, scores: torch.Tensor, rows: list[int]) -> None:
        """Applies penalties, bias and masks to scores [A, V], in place."""
        batch = SampleBatch(scores, rows, [self.state.positions[row] for row in rows])
        for processor in self._processors:
            processor.apply(batch)

    def _sample(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Applies processors and chooses tokens [A]. For rows without processors that is one compiled call,
        with little else in Python."""
        if not self._processed.isdisjoint(rows):
            self._process(logits, rows)
        if self._chooser is None or not rows:
            return self._choose_by_kind(logits, rows)
        tokens = self._chooser.choose(logits, rows)
        if UNKNOWN in tokens:
            for index in (index for index, token in enumerate(tokens) if token == UNKNOWN):
                tokens[index] = int(self._choose_by_kind(logits[index : index + 1], [rows[index]])[0])
        return torch.frombuffer(tokens, dtype=torch.int64)

    @torch.inference_mode()
    def _choose_by_kind(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Chooses tokens [A] by torch, each kind of choice for its own rows."""
        groups: dict[_Choice, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(self._choice(row), []).append(index)
        if len(groups) == 1:
            return self._choose(next(iter(groups)), logits, rows)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for choice, members in groups.items():
            where = torch.tensor(members, device=logits.device)
            tokens[where] = self._choose(choice, logits[where], [rows[member] for member in members])
        return tokens

    def _choice(self, row: int) -> _Choice:
        if self.state.temperature[row] == 0:
            return _Choice.GREEDY
        return _Choice.FROM_TOP_K if self.state.top_k[row] else _Choice.FROM_ALL

    def _choose(self, choice: _Choice, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Returns tokens [A] of rows of one kind. logits: [A, V]."""
        if choice is _Choice.GREEDY:
            return argmax(logits)
        candidates = self._candidates(logits, rows)
        positions = [self.state.positions[row] for row in rows]
        index = inverse_cdf(candidates.weights, self._uniforms.draw(rows, positions))
        if candidates.ids is None:
            return index
        tokens = candidates.ids.gather(1, index.clamp(min=0)[:, None])[:, 0]
        return torch.where(index >= 0, tokens, index)

    def _candidates(self, logits: torch.Tensor, rows: list[int]) -> Candidates:
        """Returns the distribution that the tokens of rows of one kind are drawn from."""
        candidates = candidates_of(logits, rows, self.state)
        for each in self._filters:
            each.apply(candidates)
        return candidates


def _choice_params(state: SamplingState) -> ChoiceParams:
    """Returns the columns as tensors of the same memory."""
    return ChoiceParams(
        torch.from_numpy(state.temperature),
        torch.from_numpy(state.top_k),
        torch.from_numpy(state.top_p),
        torch.from_numpy(state.min_p),
        torch.from_numpy(state.typical_p),
        torch.from_numpy(state.keys),
        torch.from_numpy(state.sequence_index),
        torch.from_numpy(state.position_column),
    )
