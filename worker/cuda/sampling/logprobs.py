"""Log-probabilities on a CUDA device: a worker.sampling.logprobs.scores.Scorer that never waits for it.

Results are copied to the host behind the kernels that compute them. Kernels find up to
TritonSampling.MOST_RANKED candidates of a token without sorting, and without writing
log-probabilities of the whole vocabulary. More candidates are sorted by torch, row by row.
"""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.triton.sampling.ops import TritonSampling
from worker.sampling.logprobs import scores as by_torch
from worker.sampling.logprobs.messages import LogprobCandidates
from worker.sampling.logprobs.scores import Scores
from worker.upload import upload

LOGITS = 1 << 25
"""Logits of prompts computed at a time: 128 MB, 220 rows of 152,000."""


def score(logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates]) -> list[Scores]:
    """Scores tokens [M] int64 by logits [M, V] float32. requests: [M] candidates of each token."""
    counts = [request.count(logits.shape[1]) for request in requests]
    if max(counts) > TritonSampling.MOST_RANKED or any(request.all for request in requests):
        rows = zip(torch.split(logits, 1), torch.split(tokens, 1), requests, strict=True)
        scored = [by_torch.score(x, token, [request]) for x, token, request in rows]
    else:
        ids = _ids(logits, tokens, requests, max(counts))
        scored = [Scores(counts, ids, *TritonSampling.token_logprobs(logits, ids))]
    return [Scores(s.counts, *map(_to_host, (s.ids, s.logprobs, s.ranks))) for s in scored]


def _ids(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[LogprobCandidates], width: int
) -> torch.Tensor:
    """Returns the tokens and their candidates, [M, 1 + width]; columns beyond those a row requested are
    undefined."""
    parts = [tokens[:, None]]
    if any(request.top_n for request in requests):
        parts.append(TritonSampling.ranking(logits, width))
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


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copies to pinned memory; the contents are valid once the step is done."""
    return tensor.to("cpu", non_blocking=True)
