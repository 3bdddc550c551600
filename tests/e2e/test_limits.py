"""GetModel tells the truth: a value at a limit works through the whole service, one above it is refused by
its field. Whatever is sent, the service answers the next request."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from pagewire import BeamSearch, Client
from pagewire.v1 import model_pb2
from pagewire_client.errors import InvalidArgument

PROMPT = "The capital of France is"
NAN, INF = math.nan, math.inf
FLOATS = {
    "temperature": (NAN, INF, -0.001),
    "top_p": (NAN, INF, 0.0, 1.001),
    "min_p": (NAN, INF, -0.001, 1.001),
    "typical_p": (NAN, INF, 0.0, 1.001),
    "frequency_penalty": (NAN, -INF, 2.001),
    "presence_penalty": (NAN, -INF, 2.001),
    "repetition_penalty": (NAN, INF, 0.0),
}


def around_limits(limits: model_pb2.Limits, prompt_len: int) -> Iterator[tuple[str, Any, Any]]:
    """(field, options at its limit, options above it)."""

    def beams(*parameters: Any, stops: int = 0) -> dict[str, Any]:
        return {"beam_search": BeamSearch(*parameters), "stop_token_ids": range(10, 10 + stops)}

    most, penalty, size = limits.max_sequences, limits.max_length_penalty, limits.max_string_bytes
    yield "sampling.n", {"n": most}, {"n": most + 1}
    yield "sampling.best_of", {"best_of": most}, {"best_of": most + 1}
    yield "sampling.best_of", {"n": 3, "best_of": 3}, {"n": 3, "best_of": 2}
    yield "sampling.beam_search.width", beams(most), beams(most + 1)
    yield "sampling.beam_search.width", beams(1), beams(0)
    yield "sampling.n", {"n": 3, **beams(3)}, {"n": 3, **beams(2)}
    for sign in (-1, 1):
        yield (
            "sampling.beam_search.length_penalty",
            beams(2, sign * penalty),
            beams(2, sign * (penalty + 0.001)),
        )
        yield (
            "priority",
            {"priority": sign * limits.max_priority},
            {"priority": sign * limits.max_priority + sign},
        )
    stops = limits.max_beam_stop_tokens
    yield "stopping.stop_token_ids", beams(2, stops=stops), beams(2, stops=stops + 1)
    yield "sampling.temperature", {"temperature": 1.0, **beams(2)}, {"temperature": 0.9, **beams(2)}
    for name in ("logprobs", "prompt_logprobs"):
        count = limits.max_logprobs
        yield f"output.{name}.top_n", {name: count}, {name: count + 1}
        yield f"output.{name}.token_ids.ids", {name: range(count)}, {name: range(count + 1)}
        yield f"output.{name}.token_ids.ids", {name: [1023]}, {name: [1024]}
    starts = [
        {"prompt_logprobs": 0, "prompt_logprobs_start": start} for start in (prompt_len - 1, prompt_len)
    ]
    yield "output.prompt_logprobs_start", *starts
    for field, option in (("tenant", "tenant"), ("cache.salt", "cache_salt"), ("request_id", "request_id")):
        longest = "t" * limits.max_tenant_bytes
        yield field, {option: longest}, {option: longest + "t"}
    words = {"stopping.stop": limits.max_stop_strings, "sampling.bad_words": limits.max_bad_words}
    for field, count in words.items():
        option = field.partition(".")[2]
        yield field, {option: ["zq"] * count}, {option: ["zq"] * (count + 1)}
        tokens = limits.max_bad_word_tokens if option == "bad_words" else size  # "z" is a token
        yield field, {option: ["z" * tokens]}, {option: ["z" * (tokens + 1)]}
        yield field, {option: ["zq"]}, {option: ["z" * (size + 1)]}


def test_what_get_model_tells_is_what_holds(client: Client) -> None:
    prompt_len = len(client.tokenize(PROMPT).token_ids)
    for field, fine, wrong in around_limits(client.model().limits, prompt_len):
        answer = client.generate(PROMPT, max_tokens=2, **fine)
        assert all(1 <= len(output.token_ids) <= 2 for output in answer.outputs), field
        with pytest.raises(InvalidArgument) as caught:
            client.generate(PROMPT, max_tokens=2, **wrong)
        assert caught.value.field == field
        with pytest.raises(InvalidArgument) as caught:
            next(client.stream(PROMPT, max_tokens=2, **wrong))
        assert caught.value.field == field


@pytest.mark.parametrize("name", FLOATS)
def test_no_odd_number_comes_through(client: Client, name: str) -> None:
    for value in FLOATS[name]:
        with pytest.raises(InvalidArgument, match=f"{name}: must be in ") as caught:
            client.generate(PROMPT, max_tokens=2, **{name: value})  # type: ignore[arg-type]  # by name
        assert caught.value.field == f"sampling.{name}"


def test_continuations(client: Client) -> None:
    limits = client.model().limits
    most = limits.max_continuations
    assert len(client.score_continuations(PROMPT, [" a"] * most)) == most
    too_many: list[list[str]] = [
        [],
        [" a"] * (most + 1),
        [" a"] * 10_000,
        ["a" * (limits.max_continuation_bytes + 1)],
    ]
    for texts in too_many:
        with pytest.raises(InvalidArgument) as caught:
            client.score_continuations(PROMPT, texts)
        assert caught.value.field == "continuations"
    for texts in (["a", ""], ["a", "a " * 2000]):
        with pytest.raises(InvalidArgument) as caught:
            client.score_continuations(PROMPT, texts)
        assert caught.value.field == "continuations[1]"
