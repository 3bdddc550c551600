"""Log-probabilities on a CUDA device: a worker.sampling.logprobs.scores.Scorer that never waits for it.

Results are copied to the host behind the kernels that compute them; table() may be called once the step is
done. Kernels find up to kernels.triton.sampling.top_n.MOST candidates of a token without sorting, and without
writing log-probabilities of the whole vocabulary. More candidates are sorted by torch, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops.sampling.logprobs import ranking
from kernels.triton.sampling.token_logprobs import token_logprobs
from kernels.triton.sampling.top_n import MOST, USUAL, top_n
from worker.sampling.logprobs import scores as by_torch
from worker.sampling.logprobs.columns import ScoreTable
from worker.sampling.logprobs.requests import LogprobCandidates
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


def top_tokens(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Returns the ids [A, n] int64 of the n >= 1 highest of logits [A, V] float32; above MOST, by torch."""
    if n > MOST:
        return ranking(logits, n)
    return top_n(logits, min(USUAL if n <= USUAL else MOST, logits.shape[1]))[:, :n]


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
