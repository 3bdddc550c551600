"""Output that repeats itself: found where a look at the whole output finds it, and after a continuation."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.errors import InvalidRequest
from frontend.streams.sequence import RepetitionDetector
from frontend.validation.requests import check_generate
from frontend.validation.rules import Limits
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from pagewire_client.params import SamplingParams
from tests.frontend.fakes import END, Output, encode, finishes_of, run_service, text_of, tokens_of

REPETITION = generation_pb2.FINISH_REASON_REPETITION
TOKENS = encode("so: on and on and on and on and on")


def first_end(tokens: list[int], max_ngram: int, count: int, min_tokens: int) -> int | None:
    """The definition: the first end of the output with `count` equal n-grams in a row."""
    for end in range(min_tokens + 1, len(tokens) + 1):
        for n in range(1, max_ngram + 1):
            tail = tokens[end - n * count : end] if end >= n * count else []
            if tail and tail == tail[:n] * count:
                return end
    return None


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=40),
    max_ngram=st.integers(1, 6),
    count=st.integers(2, 4),
    min_tokens=st.integers(0, 10),
    size=st.integers(1, 5),
)
def test_found_where_the_definition_finds_it(
    tokens: list[int], max_ngram: int, count: int, min_tokens: int, size: int
) -> None:
    detector, found = RepetitionDetector(max_ngram, count, min_tokens), None
    for start in range(0, len(tokens), size):
        place = detector.push(tokens[start : start + size])
        if place is not None:
            found = start + place
            break
    assert found == first_end(tokens, max_ngram, count, min_tokens)


def script(request: engine_pb2.AddRequest) -> Iterable[Output]:
    assert not request.stopping.HasField("repetition")
    delivered = [list(unpack_u32(part.token_ids)) for part in request.delivered] or [[]]
    for position in range(len(delivered[0]), len(TOKENS)):
        yield Output([TOKENS[position]], position=position)
    yield Output([END], generation_pb2.FINISH_REASON_EOS, END)


@pytest.mark.parametrize("stopping", [{}, {"stop": ["zzz", "and x"]}], ids=["tokens", "stop-strings"])
async def test_a_sequence_ends_and_its_continuation_ends_there_too(checkpoint, model, stopping):
    fields = {
        "sampling": {"seed": 5},
        "output": {"token_ids": True},
        "stopping": {**stopping, "repetition": {"max_ngram": 8, "count": 3}},
    }
    async with run_service(checkpoint, script, model=model) as service:
        reference = await service.generate(**fields)
        assert [finish.reason for finish in finishes_of(reference)] == [REPETITION]
        tokens = tokens_of(reference)
        assert len(tokens) == first_end(TOKENS, 8, 3, 0)
        assert text_of(reference) == "so: on and on and on and on and on"[: len(tokens)]
        assert (await service.engine.aborts.get()).handle
        for cut in range(1, len(tokens) + 1):
            sequences = [{"index": 0, "token_ids": tokens[:cut]}]
            after = await service.generate(**fields, continuation={"sequences": sequences})
            assert tokens[:cut] + tokens_of(after) == tokens
            assert [finish.reason for finish in finishes_of(after)] == [REPETITION]


async def test_no_continuation_beyond_the_end(checkpoint, model):
    stopping = {"repetition": {"max_ngram": 8, "count": 3}}
    async with run_service(checkpoint, script, model=model) as service:
        with pytest.raises(Exception, match="which repeated itself"):
            await service.generate(
                sampling={"seed": 5},
                stopping=stopping,
                continuation={"sequences": [{"index": 0, "token_ids": TOKENS}]},
            )


@pytest.mark.parametrize(
    ("repetition", "path", "problem"),
    [
        ({"max_ngram": 65, "count": 2}, "max_ngram", "must be in [1, 64], not 65"),
        ({"max_ngram": 1, "count": 1}, "count", "must be in [2, 1000], not 1"),
        ({"count": 2}, "max_ngram", "is required"),
        ({"max_ngram": 2}, "count", "is required"),
    ],
)
def test_bad_limits_are_named(repetition: dict, path: str, problem: str) -> None:
    request = generation_pb2.GenerateRequest(prompt={"text": "hi"}, stopping={"repetition": repetition})
    with pytest.raises(InvalidRequest) as caught:
        check_generate(request, Limits(512, 200, frozenset({2}), 8, 4))
    assert caught.value.violations == {f"stopping.repetition.{path}": problem}


def test_clients_set_it() -> None:
    repetition = SamplingParams(repetition=(4, 10)).stopping().repetition
    assert (repetition.max_ngram, repetition.count) == (4, 10)
    assert not SamplingParams().stopping().HasField("repetition")
