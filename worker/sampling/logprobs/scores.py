"""From logits to log-probabilities and ranks of chosen tokens and of candidates."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.ops.logits.log_softmax import log_softmax
from kernels.ops.logits.token_ranks import token_ranks
from kernels.ops.sampling.ranking import ranking
from worker.sampling.logprobs.columns import ScoreTable
from worker.sampling.logprobs.requests import LogprobCandidates


@dataclass(frozen=True, slots=True)
class Scores:
    """A ScoreTable that may still be on the device."""

    logprobs: torch.Tensor  # [M] float32
    ranks: torch.Tensor  # [M] int64
    counts: list[int]  # [M]
    candidate_ids: torch.Tensor  # [M, K] int64
    candidate_logprobs: torch.Tensor  # [M, K] float32
    candidate_ranks: torch.Tensor  # [M, K] int64

    def table(self) -> ScoreTable:
        """Returns the scores on the host. Waits for the device."""
        return ScoreTable(
            self.logprobs.cpu().numpy(),
            self.ranks.cpu().numpy(),
            torch.tensor(self.counts).numpy(),
            self.candidate_ids.cpu().numpy(),
            self.candidate_logprobs.cpu().numpy(),
            self.candidate_ranks.cpu().numpy(),
        )


def score(logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]) -> Scores:
    """Scores tokens [M] int64 by logits [M, V] float32. requests: [M] candidates of each token.

    Allocates log-probabilities [M, V], so pass few rows at a time. Scores of a row of NaN are undefined.
    """
    logprobs = log_softmax(logits)
    chosen = tokens[:, None]
    counts = [request.count(logits.shape[1]) for request in requests]
    ids = logits.new_zeros((len(counts), max(counts)), dtype=torch.int64)
    ranks = torch.zeros_like(ids)
    for request, members in _groups(requests).items():
        count = request.count(logits.shape[1])
        if not count:
            continue
        where = slice(None) if len(members) == len(counts) else send(members, logits.device)
        ids[where, :count], ranks[where, :count] = _candidates(logits[where], request)
    return Scores(
        logprobs.gather(1, chosen)[:, 0],
        token_ranks(logits, chosen)[:, 0],
        counts,
        ids,
        logprobs.gather(1, ids),
        ranks,
    )


def send(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Returns ids [N] int64 on the device, without waiting for it."""
    tensor = torch.tensor(ids)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


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
        ids = send(request.token_ids, device).expand(num_rows, -1)
        return ids, token_ranks(logits, ids)
    order = ranking(logits, request.count(vocab_size))
    ranks = torch.arange(1, order.shape[1] + 1, device=device).expand_as(order)
    if not request.all:
        return order, ranks
    return torch.arange(vocab_size, device=device).expand_as(order), torch.empty_like(order).scatter_(
        1, order, ranks
    )
