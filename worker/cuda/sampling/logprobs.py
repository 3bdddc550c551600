"""Log-probabilities on a CUDA device: worker.sampling.logprobs, without waiting for the device.

Results are copied to the host behind the kernels that compute them; columns() may be called once the step is
done. Kernels find up to kernels.triton.sampling.top_n.MOST candidates of a token without sorting, and without
writing log-probabilities of the whole vocabulary. More candidates are sorted by torch, row by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.token_logprobs import token_logprobs
from kernels.triton.sampling.top_n import MOST
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.cuda.sampling.top_n import top_tokens
from worker.sampling.logprobs import scores as by_torch
from worker.sampling.logprobs.columns import ScoreTable, to_columns
from worker.sampling.logprobs.requests import LogprobCandidates, PromptPart
from worker.upload import upload

LOGITS = 1 << 25
"""Logits of prompts computed at a time: 128 MB, 220 rows of 152,000."""


@dataclass(frozen=True, slots=True)
class PendingScores:
    """A ScoreTable that is being copied to the host. Column 0 is of the tokens themselves."""

    counts: list[int]  # [M]
    ids: torch.Tensor  # [M, 1 + K] int64
    logprobs: torch.Tensor  # [M, 1 + K] float32
    ranks: torch.Tensor  # [M, 1 + K] integers

    def table(self) -> ScoreTable:
        """Returns the table. Call it once the step is done."""
        ids, logprobs, ranks = self.ids.numpy(), self.logprobs.numpy(), self.ranks.numpy()
        return ScoreTable(
            logprobs[:, 0], ranks[:, 0], np.array(self.counts), ids[:, 1:], logprobs[:, 1:], ranks[:, 1:]
        )


class PendingSampledScores:
    """Scores the tokens that the rows of one step sample; see worker.sampling.logprobs.sampled."""

    def __init__(self, requests: Mapping[int, LogprobCandidates]) -> None:
        """requests: rows whose samples are scored, and with which candidates."""
        self._requests = requests
        self._pending: list[PendingScores] = []
        self._members: list[int] = []

    def concern(self, rows: Sequence[int]) -> bool:
        """Returns whether one of the rows is scored."""
        return bool(self._requests) and any(row in self._requests for row in rows)

    def keep(self, logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor | None:
        """Returns a copy of the logits [A, V] of those rows [A] that are scored; None: none is."""
        members = [index for index, row in enumerate(rows) if row in self._requests] if self._requests else []
        if not members:
            return None
        self._members = members
        return logits.index_select(0, upload(np.array(members), logits.device))

    def add(self, kept: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Scores tokens [A] of rows [A]; negative: no token. kept: what keep() returned for these rows."""
        chosen = tokens.index_select(0, upload(np.array(self._members), tokens.device)).clamp(min=0)
        self._pending += score(kept, chosen, [self._requests[rows[member]] for member in self._members])

    def columns(self) -> engine_pb2.LogprobColumns | None:
        """Returns everything that was added; None: nothing was. Call it once the step is done."""
        return to_columns([pending.table() for pending in self._pending]) if self._pending else None


class PromptScores:
    """Scores the parts of prompts that one step computes; see worker.sampling.logprobs.prompts."""

    def __init__(self) -> None:
        self._pending: list[tuple[PromptPart, list[PendingScores]]] = []

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
        step = max(1, LOGITS // vocab_size)
        for part in parts:
            place = int(row_starts[part.index]) + part.offset
            targets = token_ids[part.row, part.start : part.end].copy()
            pending: list[PendingScores] = []
            for begin in range(0, len(targets), step):
                some = targets[begin : begin + step]
                logits = logits_of(np.arange(place + begin, place + begin + len(some)))
                pending += score(logits, upload(some, logits.device), [part.candidates] * len(some))
            self._pending.append((part, pending))

    def columns(self) -> Iterator[worker_pb2.RowPromptLogprobs]:
        """Returns everything that was added. Call it once the step is done."""
        for part, pending in self._pending:
            columns = to_columns([scores.table() for scores in pending])
            yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=columns)


def score(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]
) -> list[PendingScores]:
    """Scores tokens [M] int64 by logits [M, V] float32. requests: [M] candidates of each token."""
    counts = [request.count(logits.shape[1]) for request in requests]
    if max(counts) > MOST or any(request.all for request in requests):
        rows = zip(torch.split(logits, 1), torch.split(tokens, 1), requests, strict=True)
        return [_sorted(x, token, request) for x, token, request in rows]
    ids = _ids(logits, tokens, requests, max(counts))
    logprobs, ranks = token_logprobs(logits, ids)
    return [PendingScores(counts, _to_host(ids), _to_host(logprobs), _to_host(ranks))]


def _ids(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates], width: int
) -> torch.Tensor:
    """The tokens and their candidates, [M, 1 + width]; columns beyond those a row requested are undefined."""
    parts = [tokens[:, None]]
    if any(request.top_n for request in requests):
        parts.append(top_tokens(logits, width))
    ids = torch.cat(parts, 1)
    if width >= ids.shape[1]:
        ids = torch.nn.functional.pad(ids, (0, width + 1 - ids.shape[1]))
    named = [member for member, request in enumerate(requests) if request.token_ids]
    if named:
        given = np.zeros((len(named), width), np.int64)
        for row, member in zip(given, named, strict=True):
            row[: len(requests[member].token_ids)] = requests[member].token_ids
        ids[:, 1:].index_copy_(0, upload(np.array(named), ids.device), upload(given, ids.device))
    return ids


def _sorted(logits: torch.Tensor, token: torch.Tensor, request: LogprobCandidates) -> PendingScores:
    """Scores one row with many candidates."""
    found = by_torch.score(logits, token, [request])
    ids = torch.cat((token[:, None], found.candidate_ids), 1)
    logprobs = torch.cat((found.logprobs[:, None], found.candidate_logprobs), 1)
    ranks = torch.cat((found.ranks[:, None], found.candidate_ranks), 1)
    return PendingScores(found.counts, _to_host(ids), _to_host(logprobs), _to_host(ranks))


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copies to pinned memory; the contents are valid once the step is done."""
    return tensor.to("cpu", non_blocking=True)
