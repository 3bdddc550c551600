"""Log-probabilities in columns: cut and joined anywhere, they say the same."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.engine.logprobs import PromptScores, Scores, split_scores
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from tests.logprob_columns import Scored, put_together, read_public
from tests.pagewire.ipc.test_logprob_columns import token_lists


def shown(scores: Scores) -> list[Scored]:
    message = generation_pb2.TokenLogprobs()
    scores.put(message, None)
    return read_public(message)


@given(token_lists(), st.data())
def test_cut_and_joined(tokens: list[Scored], data: st.DataObject) -> None:
    scores = Scores.read(put_together(tokens))
    assert len(scores) == len(tokens) and shown(scores) == tokens
    borders = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    joined = Scores()
    for start, end in zip([0, *borders], [*borders, len(tokens)], strict=True):
        part = scores.cut(start, end)
        assert shown(part) == tokens[start:end]
        joined.extend(part)
    assert shown(joined) == tokens


@given(token_lists(), token_lists())
def test_with_and_without_candidates(first: list[Scored], second: list[Scored]) -> None:
    """Messages of which one has no candidates at all."""
    scores = Scores.read(put_together(first))
    scores.extend(Scores.read(put_together(second)))
    assert shown(scores) == first + second


def test_bytes_of_candidates() -> None:
    message = generation_pb2.TokenLogprobs()
    Scores.read(put_together([Scored(-1, 1, [5, 6], [-1, -2], [1, 2])])).put(
        message, lambda token: b"%d" % token
    )
    assert list(message.candidate_bytes) == [b"5", b"6"]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_prompt_in_parts(start: int) -> None:
    tokens = [Scored(-float(i), i) for i in range(6)]
    prompt = PromptScores(start, 6)
    first = max(start, 1)
    assert prompt.missing == first
    prompt.add(first, Scores.read(put_together(tokens[first : first + 2])))
    assert prompt.missing == first + 2
    with pytest.raises(ValueError, match="do not follow"):
        prompt.add(first, Scores.read(put_together(tokens[first : first + 2])))
    if first + 2 < 6:
        prompt.add(first + 2, Scores.read(put_together(tokens[first + 2 :])))
    assert prompt.missing is None
    message = generation_pb2.TokenLogprobs()
    prompt.take(message, None)
    assert len(message.logprobs) == 6 - start
    assert [math.isnan(value) for value in message.logprobs] == [start == 0, *[False] * (5 - start)]
    assert read_public(message)[first - start :] == tokens[first:]


def test_a_prompt_of_one_token_has_nothing_to_wait_for() -> None:
    assert PromptScores(0, 1).missing is None


def test_entries_of_a_step() -> None:
    columns = put_together([Scored(-1, 1), Scored(-2, 2), Scored(-3, 3)])
    outputs = engine_pb2.StepOutputs(has_logprobs=bytes([1, 0, 1, 0]), logprobs=columns)
    parts = list(split_scores(outputs, [1, 5, 2, 0]))
    assert [None if part is None else list(part.logprobs) for part in parts] == [[-1], None, [-2, -3], None]


@pytest.mark.parametrize(
    ("has", "counts", "ranks"), [([1], [2], 1), ([1, 1], [1], 1), ([0], [1], 1), ([1], [1], 2)]
)
def test_entries_that_do_not_fit(has: list[int], counts: list[int], ranks: int) -> None:
    columns = put_together([Scored(-1, 1)])
    columns.ranks = pack_u32([1] * ranks)
    with pytest.raises(ValueError, match="log-probabilities"):
        split_scores(engine_pb2.StepOutputs(has_logprobs=bytes(has), logprobs=columns), counts)
