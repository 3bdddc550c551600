"""Log-probabilities on a CUDA device: worker.sampling.logprobs, without a wait.

What is asked for goes to the host behind the kernels that find it; columns() may be called when the device
has done the step. Up to kernels.triton.sampling.top_n.MOST candidates of a token are found by kernels that
neither sort nor write log-probabilities of a whole vocabulary. More are sorted by torch, row by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.token_logprobs import token_logprobs
from kernels.triton.sampling.top_n import MOST
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.cuda.top_n import top_tokens
from worker.cuda.upload import upload
from worker.sampling.logprobs import scores as by_torch
from worker.sampling.logprobs.columns import ScoreTable, to_columns
from worker.sampling.logprobs.requests import LogprobCandidates, PromptPart

LOGITS = 1 << 25
"""Logits of prompts that are made at a time: 128 MB, 220 rows of 152,000."""


@dataclass(frozen=True, slots=True)
class PendingScores:
    """A ScoreTable that is on its way to the host. The first column is of the tokens themselves."""

    counts: list[int]  # [M]
    ids: torch.Tensor  # [M, 1 + K] int64
    logprobs: torch.Tensor  # [M, 1 + K] float32
    ranks: torch.Tensor  # [M, 1 + K] integers

    def table(self) -> ScoreTable:
        """When the device has done the step."""
        ids, logprobs, ranks = self.ids.numpy(), self.logprobs.numpy(), self.ranks.numpy()
        return ScoreTable(
            logprobs[:, 0], ranks[:, 0], np.array(self.counts), ids[:, 1:], logprobs[:, 1:], ranks[:, 1:]
        )


class PendingSampledScores:
    """worker.sampling.logprobs.sampled.SampledScores: of what the rows of one step sample."""

    def __init__(self, requests: Mapping[int, LogprobCandidates]) -> None:
        """requests: rows whose samples are scored, and with which candidates."""
        self._requests = requests
        self._pending: list[PendingScores] = []
        self._members: list[int] = []

    def keep(self, logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor | None:
        """A copy of the logits [A, V] of those rows [A] that want to know; None: none of them does."""
        members = [index for index, row in enumerate(rows) if row in self._requests] if self._requests else []
        if not members:
            return None
        self._members = members
        return logits.index_select(0, upload(np.array(members), logits.device))

    def add(self, kept: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """kept: what keep() gave for these rows. tokens [A]: what they were given; negative: none."""
        chosen = tokens.index_select(0, upload(np.array(self._members), tokens.device)).clamp(min=0)
        self._pending += score(kept, chosen, [self._requests[rows[member]] for member in self._members])

    def columns(self) -> engine_pb2.LogprobColumns | None:
        """Everything that was added; None: nothing was. When the device has done the step."""
        return to_columns([pending.table() for pending in self._pending]) if self._pending else None


class PromptScores:
    """worker.sampling.logprobs.prompts.score_prompts: of the parts of prompts that one step computes."""

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
        """row_starts: [R] where the tokens of each computing row begin in the step. token_ids: the row
        table's. logits_of: places of tokens in the step [N] -> their logits [N, V]."""
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
        """Everything that was added. When the device has done the step."""
        for part, pending in self._pending:
            columns = to_columns([scores.table() for scores in pending])
            yield worker_pb2.RowPromptLogprobs(row=part.row, start=part.start, columns=columns)


def score(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]
) -> list[PendingScores]:
    """logits [M, V] float32, tokens [M] int64 chosen from them, with candidates for each."""
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
    """One row with many candidates."""
    found = by_torch.score(logits, token, [request])
    ids = torch.cat((token[:, None], found.candidate_ids), 1)
    logprobs = torch.cat((found.logprobs[:, None], found.candidate_logprobs), 1)
    ranks = torch.cat((found.ranks[:, None], found.candidate_ranks), 1)
    return PendingScores(found.counts, _to_host(ids), _to_host(logprobs), _to_host(ranks))


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """In pinned memory, there when the device has come so far."""
    return tensor.to("cpu", non_blocking=True)
