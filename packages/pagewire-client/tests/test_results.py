"""Messages become results: log-probabilities."""

from math import nan

import pytest

from pagewire.v1 import generation_pb2
from pagewire_client.results import Candidate, Generation, TokenLogprob

COLUMNS = generation_pb2.TokenLogprobs(
    logprobs=[-1, -2],
    ranks=[1, 9],
    candidate_counts=[2, 1],
    candidate_token_ids=[5, 6, 7],
    candidate_logprobs=[-1, -3, -0.5],
    candidate_ranks=[1, 2, 1],
)


def message(
    position: int, token_ids: list[int], columns: generation_pb2.TokenLogprobs, *, end: bool = False
) -> generation_pb2.GenerateResponse:
    finish = generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_EOS) if end else None
    output = generation_pb2.SequenceOutput(
        token_ids=token_ids, position=position, logprobs=columns, finish=finish
    )
    return generation_pb2.GenerateResponse(sequences=[output])


def test_of_the_output() -> None:
    """One object per token, with its candidates; the sum comes with the end."""
    generation = Generation()
    (delta,) = generation.add(message(0, [5, 8], COLUMNS))
    assert delta.logprobs == [
        TokenLogprob(-1, 1, [Candidate(5, -1, 1), Candidate(6, -3, 2)]),
        TokenLogprob(-2, 9, [Candidate(7, -0.5, 1)]),
    ]
    assert generation.outputs[0].cumulative_logprob is None
    plain = generation_pb2.TokenLogprobs(logprobs=[-0.25], ranks=[1])
    generation.add(message(2, [3], plain, end=True))
    assert generation.outputs[0].logprobs == [*delta.logprobs, TokenLogprob(-0.25, 1)]
    assert generation.outputs[0].cumulative_logprob == pytest.approx(-3.25)


def test_of_the_prompt() -> None:
    """The first token has none. A continued stream does not say them again."""
    first = message(0, [1], generation_pb2.TokenLogprobs())
    first.prompt.tokens = 3
    first.prompt.logprobs.MergeFrom(COLUMNS)
    first.prompt.logprobs.logprobs[0], first.prompt.logprobs.candidate_counts[:] = nan, [0, 3]
    generation = Generation()
    generation.add(first)
    again = message(1, [2], generation_pb2.TokenLogprobs())
    again.prompt.tokens = 3
    generation.add(again)
    missing, second = generation.prompt_logprobs
    assert missing is None and second is not None
    assert (second.logprob, [candidate.token_id for candidate in second.candidates]) == (-2, [5, 6, 7])


def test_none_are_none() -> None:
    generation = Generation()
    response = generation_pb2.GenerateResponse(
        sequences=[
            generation_pb2.SequenceOutput(
                token_ids=[4], finish=generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_EOS)
            )
        ]
    )
    (delta,) = generation.add(response)
    assert delta.logprobs == generation.outputs[0].logprobs == generation.prompt_logprobs == []
    assert generation.outputs[0].cumulative_logprob is None
