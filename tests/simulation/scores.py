"""Log-probabilities, as the simulated worker's formula has them (pagewire_simulated/scores.py)."""

from collections.abc import Sequence
from functools import cache
from math import isnan, log

from pagewire.v1 import generation_pb2
from pagewire_simulated.tokens import GAMMA, mix
from tests.simulation.vocabulary import VOCAB_SIZE

TOLERANCE = 1e-5
"""Of a float32 between 0 and -12."""


def rank_scores(token_ids: Sequence[int]) -> list[tuple[float, int]]:
    """Log-probability and rank of each token after those before it; that of the first one is no number."""
    context, scores = 0, []
    for place, token in enumerate(token_ids):
        rank = (token - mix(context) % VOCAB_SIZE) % VOCAB_SIZE + 1
        scores.append((_logprob(rank) if place else float("nan"), rank if place else 0))
        context += mix(token + GAMMA * (place + 1))
    return scores


def check_scores(
    columns: generation_pb2.TokenLogprobs,
    expected: Sequence[tuple[float, int]],
    wanted: generation_pb2.LogprobOptions,
) -> None:
    """Raises AssertionError unless the columns are those of these tokens."""
    assert list(columns.ranks) == [rank for _, rank in expected], "wrong ranks"
    for value, (right, _) in zip(columns.logprobs, expected, strict=True):
        assert isnan(right) and isnan(value) or abs(value - right) < TOLERANCE, "wrong log-probabilities"
    if wanted.top_n:
        counts = [0 if isnan(right) else wanted.top_n for right, _ in expected]
        assert list(columns.candidate_counts) == (counts if any(counts) else []), "wrong candidates"
        ranks = [rank for count in counts for rank in range(1, count + 1)]
        assert list(columns.candidate_ranks) == ranks, "wrong ranks of candidates"
        for value, rank in zip(columns.candidate_logprobs, ranks, strict=True):
            assert abs(value - _logprob(rank)) < TOLERANCE, "wrong log-probabilities of candidates"


@cache
def _logprob(rank: int) -> float:
    return -log(rank) - log(sum(1 / r for r in range(1, VOCAB_SIZE + 1)))
