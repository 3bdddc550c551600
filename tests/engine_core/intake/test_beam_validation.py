"""Beam searches that the engine core refuses."""

import math
from collections.abc import Callable

import pytest

from engine_core.errors import Code, Refused
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.ipc.columns import pack_u32
from pagewire.limits import MAX_STOPS
from tests.engine_core.fake_beams import EOS, beam_search
from tests.engine_core.fakes import LIMITS, add_request, make

REFUSED: dict[str, tuple[Callable[[AddRequest], object], str]] = {
    "no length_penalty": (
        lambda m: m.sampling.beam_search.ClearField("length_penalty"),
        "sampling.beam_search.length_penalty",
    ),
    "no early_stopping": (
        lambda m: m.sampling.beam_search.ClearField("early_stopping"),
        "sampling.beam_search.early_stopping",
    ),
    "no width": (lambda m: m.sampling.beam_search.ClearField("width"), "sampling.beam_search.width"),
    "too wide": (lambda m: setattr(m.sampling.beam_search, "width", 9), "sampling.beam_search.width"),
    "n over width": (lambda m: setattr(m.sampling, "n", 4), "sampling.n"),
    "NaN": (
        lambda m: setattr(m.sampling.beam_search, "length_penalty", math.nan),
        "sampling.beam_search.length_penalty",
    ),
    "a huge exponent": (
        lambda m: setattr(m.sampling.beam_search, "length_penalty", -11.0),
        "sampling.beam_search.length_penalty",
    ),
    "temperature": (lambda m: setattr(m.sampling, "temperature", 0.5), "sampling.temperature"),
    "top_p": (lambda m: setattr(m.sampling, "top_p", 0.5), "sampling.top_p"),
    "top_k": (lambda m: setattr(m.sampling, "top_k", 5), "sampling.top_k"),
    "min_p": (lambda m: setattr(m.sampling, "min_p", 0.5), "sampling.min_p"),
    "typical_p": (lambda m: setattr(m.sampling, "typical_p", 0.5), "sampling.typical_p"),
    "output that was delivered": (
        lambda m: m.delivered.add(index=0, token_ids=pack_u32([1])),
        "continuation.sequences",
    ),
    "log-probabilities": (lambda m: m.logprobs.SetInParent(), "output.logprobs"),
    "nothing to make": (lambda m: setattr(m.stopping, "max_tokens", 0), "stopping.max_tokens"),
    "many stops": (
        lambda m: m.stopping.stop_token_ids.extend(range(3, 4 + MAX_STOPS)),
        "stopping.stop_token_ids",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    change, field = REFUSED[case]
    message = add_request(n=3, beams=beam_search(3))
    make(message)
    change(message)
    with pytest.raises(Refused) as refusal:
        make(message)
    assert refusal.value.field == field
    assert refusal.value.code is Code.INVALID_ARGUMENT


def test_beams_that_may_not_fit_into_the_pool_are_refused() -> None:
    """64 blocks of 4: 2 full blocks of the prompt are shared, and each beam has up to 14 of its own; the last
    token of a beam has no slot."""
    make(add_request(prompt=9, beams=beam_search(4), max_tokens=55))
    assert LIMITS.max_model_len == 64
    make(add_request(prompt=9, beams=beam_search(4), max_tokens=1000))
    with pytest.raises(Refused) as refusal:
        make(add_request(prompt=9, beams=beam_search(5), max_tokens=50))
    assert refusal.value.field == "sampling.beam_search.width"
    assert refusal.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    make(add_request(prompt=9, beams=beam_search(5), max_tokens=40))


def test_the_parameters_of_a_search() -> None:
    message = add_request(prompt=9, n=2, beams=beam_search(3, 0.5, True), max_tokens=1000, min_tokens=2)
    message.stopping.stop_token_ids.extend([7, 8])
    parameters = make(message).beam_search
    assert parameters is not None
    assert (parameters.width, parameters.num_results, parameters.max_output) == (3, 2, 55)
    assert (parameters.length_penalty, parameters.early_stopping) == (0.5, True)
    assert (parameters.stops, parameters.min_tokens) == ({EOS, 7, 8}, 2)
    assert parameters.num_candidates == 6
