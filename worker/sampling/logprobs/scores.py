"""Log-probabilities and ranks: of what rows sample, from the model's logits before the sampler changes them,
and of prompts, where the logits at a position score the token at the next one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.api import SamplingOps
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart, ScoreTable, to_columns
from worker.upload import upload

PIECE = 1 << 19
"""Logits that torch works on at a time. Float64 temporaries of 4 MB are reused by the allocator; larger ones
are new pages from the system each time: 32 rows of 152,000 at temperature 0.8 take 51 ms in one piece and 18
ms in pieces."""
LOGITS = 1 << 22
"""Logits of prompts computed at a time, 16 MB. Each time reads the head's weights once; all logits of 2,048
tokens and a vocabulary of 152,000 would take 1.2 GB."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A ScoreTable in tensors, maybe on the way from a device. Column 0 is of the tokens themselves."""

    counts: list[int]  # [M]
    ids: torch.Tensor  # [M, 1 + K] int64
    logprobs: torch.Tensor  # [M, 1 + K] float32
    ranks: torch.Tensor  # [M, 1 + K] integers

    def table(self) -> ScoreTable:
        """Returns the scores on the host. Call it once the step is done."""
        ids, logprobs, ranks = self.ids.numpy(), self.logprobs.numpy(), self.ranks.numpy()
        return ScoreTable(
            logprobs[:, 0], ranks[:, 0], np.array(self.counts), ids[:, 1:], logprobs[:, 1:], ranks[:, 1:]
        )


Scorer = Callable[[torch.Tensor, torch.Tensor, Sequence[LogprobCandidates]], Sequence[Scores]]
"""Logits [M, V] float32, tokens [M] int64 and the candidates of each -> their scores, in order."""


def score(logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]) -> Scores:
    """Scores tokens [M] int64 by logits [M, V] float32. requests: [M] candidates of each token.

    Allocates log-probabilities [M, V], so pass few rows at a time. Scores of a row of NaN are undefined.
    """
    counts = [request.count(logits.shape[1]) for request in requests]
    ids = logits.new_zeros((len(counts), 1 + max(counts)), dtype=torch.int64)
    ids[:, 0], ranks = tokens, torch.zeros_like(ids)
    ranks[:, :1] = SamplingOps.token_ranks(logits, tokens[:, None])
    for request, members in _groups(requests).items():
        end = 1 + request.count(logits.shape[1])
        if end > 1:
            where = slice(None) if len(members) == len(counts) else upload(np.array(members), logits.device)
            ids[where, 1:end], ranks[where, 1:end] = _candidates(logits[where], request)
    return Scores(counts, ids, SamplingOps.log_softmax(logits).gather(1, ids), ranks)


def score_in_pieces(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]
) -> list[Scores]:
    """Scores a few rows at a time, so that the allocator reuses temporaries; see PIECE."""
    step = max(1, PIECE // logits.shape[1])
    pieces = [slice(begin, begin + step) for begin in range(0, len(tokens), step)]
    return [score(logits[piece], tokens[piece], requests[piece]) for piece in pieces]


def _groups(requests: Sequence[LogprobCandidates]) -> dict[LogprobCandidates, list[int]]:
    """Returns the indexes of equal requests, which are scored together."""
    groups: dict[LogprobCandidates, list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(request, []).append(index)
    return groups


def _candidates(logits: torch.Tensor, request: LogprobCandidates) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and ranks of the candidates, both [M, K], in the order of LogprobColumns."""
    num_rows, vocab_size = logits.shape
    device = logits.device
    if request.token_ids:
        ids = upload(np.array(request.token_ids, np.int64), device).expand(num_rows, -1)
        return ids, SamplingOps.token_ranks(logits, ids)
    order = SamplingOps.ranking(logits, request.count(vocab_size))
    ranks = torch.arange(1, order.shape[1] + 1, device=device).expand_as(order)
    if not request.all:
        return order, ranks
    return torch.arange(vocab_size, device=device).expand_as(order), torch.empty_like(order).scatter_(
        1, order, ranks
    )


class SampledScores:
    """Scores what one step samples."""

    def __init__(self, requests: Mapping[int, LogprobCandidates], scorer: Scorer = score_in_pieces) -> None:
        """requests: rows whose samples are scored, and with which candidates."""
        self._requests, self._scorer = requests, scorer
        self._scores: list[Scores] = []
        self._members: list[int] = []

    def watches(self, rows: Sequence[int]) -> bool:
        """Returns whether any of the rows is scored."""
        return bool(self._requests) and any(row in self._requests for row in rows)

    def keep(self, logits: torch.Tensor, rows: Sequence[int], changes: bool = True) -> torch.Tensor | None:
        """Returns the logits [A, V] of those rows [A] that are scored, copied where the sampler changes them;
        None: none is."""
        if not self.watches(rows):
            return None
        self._members = [index for index, row in enumerate(rows) if row in self._requests]
        if not changes and len(self._members) == len(rows):
            return logits
        return logits.index_select(0, upload(np.array(self._members), logits.device))

    def add(self, kept: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Scores tokens [A] of rows [A]; negative: no token. kept: what keep() has just returned for them."""
        chosen = tokens.index_select(0, upload(np.array(self._members), tokens.device)).clamp(min=0)
        self._scores += self._scorer(kept, chosen, [self._requests[rows[member]] for member in self._members])

    def columns(self) -> engine_pb2.LogprobColumns | None:
        """Returns everything that was added; None: nothing was. Call it once the step is done."""
        return to_columns([scores.table() for scores in self._scores]) if self._scores else None


class PromptScores:
    """Scores the parts of prompts that one step computes."""

    def __init__(self, scorer: Scorer = score_in_pieces, logits: int | None = None) -> None:
        """logits: computed at a time; None: LOGITS."""
        self._scorer, self._logits = scorer, logits or LOGITS
        self._scores: list[tuple[PromptPart, list[Scores]]] = []

    def add(
        self,
        parts: Sequence[PromptPart],
        row_starts: Integers,
        token_ids: Integers,
        logits_of: Callable[[Integers], torch.Tensor],
        vocab_size: int,
    ) -> None:
        """Adds parts. row_starts: [R] index in the step of each computing row's first token. token_ids: the
        row table's. logits_of: indexes of tokens in the step [N] -> their logits [N, V]."""
        step = max(1, self._logits // vocab_size)
        for part in parts:
            first = int(row_starts[part.index]) + part.offset
            targets, scores = token_ids[part.row, part.start : part.end].copy(), list[Scores]()
            for begin in range(0, len(targets), step):
                some = targets[begin : begin + step]
                logits = logits_of(np.arange(first + begin, first + begin + len(some)))
                scores += self._scorer(logits, upload(some, logits.device), [part.candidates] * len(some))
            self._scores.append((part, scores))

    def columns(self) -> Iterator[worker_pb2.RowPromptLogprobs]:
        """Returns everything that was added. Call it once the step is done."""
        for part, scores in self._scores:
            columns = to_columns([each.table() for each in scores])
            yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=columns)
