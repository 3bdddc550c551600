"""From logits to scores: against float64, alone and in batches, in any mixture of requests."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ops.sampling.logprobs import ranking_reference
from tests.kernels.references.sampling import log_softmax_reference
from tests.logprob_columns import Scored, take_apart
from worker.sampling.logprobs.messages import LogprobCandidates, to_columns
from worker.sampling.logprobs.scores import SampledScores, score

V = 30
TOKEN = st.integers(0, V - 1)
WISHES = st.one_of(
    st.just(LogprobCandidates()),
    st.builds(LogprobCandidates, top_n=st.integers(1, V)),
    st.lists(TOKEN, min_size=1, max_size=5, unique=True).map(
        lambda ids: LogprobCandidates(token_ids=tuple(ids))
    ),
    st.just(LogprobCandidates(all=True)),
)


def logits_for(rows: int, seed: int) -> torch.Tensor:
    """[rows, V] float32, with many equals for odd seeds."""
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.round() if seed % 2 else logits


def expected(logits: torch.Tensor, token: int, request: LogprobCandidates) -> Scored:
    """The definition, for one row."""
    logprobs = log_softmax_reference(logits[None])[0].tolist()
    order = ranking_reference(logits[None], V)[0].tolist()
    ids = list(range(V)) if request.all else list(request.token_ids) or order[: request.top_n]
    return Scored(
        logprobs[token],
        order.index(token) + 1,
        ids,
        [logprobs[i] for i in ids],
        [order.index(i) + 1 for i in ids],
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(TOKEN, WISHES), min_size=1, max_size=8), st.integers(0, 999))
def test_equals_the_definition(rows: list[tuple[int, LogprobCandidates]], seed: int) -> None:
    logits = logits_for(len(rows), seed)
    tokens, requests = torch.tensor([token for token, _ in rows]), [request for _, request in rows]
    found = take_apart(to_columns([score(logits, tokens, requests).table()]))
    for place, (token, request) in enumerate(rows):
        right = expected(logits[place], token, request)
        assert (found[place].rank, found[place].ids, found[place].ranks) == (
            right.rank,
            right.ids,
            right.ranks,
        )
        assert found[place].logprob == pytest.approx(right.logprob, abs=2e-6)
        assert found[place].logprobs == pytest.approx(right.logprobs, abs=2e-6)


def test_bitwise_the_same_in_pieces() -> None:
    """Scores do not depend on the other rows, nor on how rows are split into tables."""
    logits, tokens = logits_for(9, 4), torch.arange(9)
    requests = [LogprobCandidates(top_n=i % 4) for i in range(9)]
    together = to_columns([score(logits, tokens, requests).table()])
    pieces = [slice(0, 1), slice(1, 2), slice(2, 7), slice(7, 9)]
    apart = [score(logits[piece], tokens[piece], requests[piece]).table() for piece in pieces]
    assert to_columns(apart) == together


def test_without_candidates_there_is_no_column_of_them() -> None:
    columns = to_columns([score(logits_for(3, 0), torch.arange(3), [LogprobCandidates()] * 3).table()])
    assert len(columns.logprobs) == len(columns.ranks) == 12
    assert columns.candidate_counts == columns.candidate_token_ids == b""
    assert to_columns([]).logprobs == b""


def test_logits_are_copied_where_the_sampler_changes_them_or_scores_some_rows() -> None:
    logits, scores = logits_for(3, 0), SampledScores({4: LogprobCandidates(), 6: LogprobCandidates(top_n=2)})
    assert scores.keep(logits[:1], [5]) is None
    assert scores.keep(logits[:2], [4, 6], changes=False).data_ptr() == logits.data_ptr()  # type: ignore[union-attr]
    for rows, changes, kept in (([4, 6, 4], True, [0, 1, 2]), ([5, 6, 4], False, [1, 2])):
        found = scores.keep(logits, rows, changes)
        assert found is not None and torch.equal(found, logits[kept])
        assert found.data_ptr() != logits.data_ptr()
