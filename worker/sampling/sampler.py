"""The sampler: from logits to one token per row. Steps, formulas and order: docs/sampling.md.

A token is a function of its row's logits, parameters and history and of (seed, sequence index, position), and
independent of the other rows of the batch.
"""

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.ops.sampling.choose import choose_tokens
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.sampling.logprobs import log_softmax, ranking
from worker.grammar.rows import GrammarRows
from worker.sampling.allowed_tokens import AllowedTokens
from worker.sampling.batch import PIECE, SampleBatch
from worker.sampling.logit_bias import LogitBias
from worker.sampling.logprobs.scores import SampledScores
from worker.sampling.penalties import Penalties
from worker.sampling.rows import SamplingRows
from worker.sampling.token_bans import TokenBans

NO_TOKEN = -1
"""Returned by sample() for a row whose largest logit is not finite."""


class Sampler(SamplingRows):
    """Chooses tokens for rows on a CPU."""

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
        columns, grammars = SamplingColumns(max_num_rows), grammars or GrammarRows(vocab_size, None)
        penalties = Penalties(vocab_size, device, kernels)
        allowed, bans = AllowedTokens(grammars, vocab_size, kernels), TokenBans(columns, vocab_size, device)
        # The order is part of the API: these do not commute.
        self._steps = (penalties, LogitBias(vocab_size), allowed, bans)
        super().__init__(columns, vocab_size, self._steps, grammars)
        self._recorders = (penalties, bans)
        self._allowed, self._rows_per_piece = allowed, max(1, PIECE // vocab_size)
        self._copies = kernels is None  # torch copies the logits that it works on; compiled functions do not
        self._choose_tokens = choose_tokens if kernels is None else kernels.choose_tokens
        self._processed: set[int] = set()  # rows whose logits change before the choice
        self._plain: set[int] = set()  # rows that take the largest of their logits as they are

    def remove_row(self, row: int) -> None:
        self._processed.discard(row)
        self._plain.discard(row)
        super().remove_row(row)

    def _begin(self, row: int) -> None:
        if any(row in processor for processor in self._steps):
            self._processed.add(row)
        elif self.columns["temperature"][row] == 0:
            self._plain.add(row)

    def all_greedy(self, rows: list[int]) -> bool:
        """Returns whether sample() would return kernels.ops.sampling.choose.argmax for every row, whatever
        the logits. A caller that already has these tokens may append() them instead."""
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
        copied = self._copies or (scores is not None and scores.watches(rows))
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
        positions = self.columns.positions
        for row in rows:
            positions[row] += 1

    @torch.inference_mode()
    def _record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends tokens [A] to the state of processors that depend on the output."""
        self._allowed.record(rows, tokens)
        known = tokens.clamp(min=0)  # NO_TOKEN is no index
        for recorder in self._recorders:
            recorder.record(rows, known)

    @torch.inference_mode()
    def _process(self, scores: torch.Tensor, rows: list[int]) -> None:
        """Applies penalties, bias and masks to scores [A, V], in place."""
        batch = SampleBatch(scores, rows)
        for processor in self._steps:
            processor.apply(batch)

    def _sample(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Applies processors and chooses tokens [A]. For rows without processors that is one compiled call,
        with little else in Python."""
        if not self._processed.isdisjoint(rows):
            self._process(logits, rows)
        return self._choose_tokens(logits, rows, self.columns)
