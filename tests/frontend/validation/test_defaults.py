"""Absent fields become the model's defaults; present ones stay, zeros included."""

from frontend.validation.defaults import COLDEST, resolve
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import make_request

DEFAULTS = generation_pb2.SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    typical_p=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    repetition_penalty=1.1,
    n=1,
)


def resolved(**fields):
    return resolve(make_request(**fields), DEFAULTS, Limits(100, 50, frozenset(), 1, 1), seed=99)


def test_absent_fields_take_the_defaults():
    sampling = resolved().sampling
    for field, value in DEFAULTS.ListFields():
        assert getattr(sampling, field.name) == value
    assert all(
        sampling.HasField(name)
        for name in (*(field.name for field, _ in DEFAULTS.ListFields()), "seed", "frequency_penalty")
    )


def test_zero_is_a_value():
    sampling = resolved(sampling={"temperature": 0, "top_k": 0, "min_p": 0, "seed": 0}).sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0, 0, 0)
    assert sampling.HasField("seed") and sampling.top_p == DEFAULTS.top_p


def test_a_request_without_a_seed_has_the_given_one():
    assert resolved().sampling.seed == 99


def test_tiny_temperatures_are_greedy():
    """S11: logits divided by them would overflow."""
    assert resolved(sampling={"temperature": 1e-45}).sampling.temperature == 0
    assert resolved(sampling={"temperature": 2 * COLDEST}).sampling.temperature > 0


def test_top_k_beyond_the_vocabulary_is_all_of_it():
    assert resolved(sampling={"top_k": 100}).sampling.top_k == 0
    assert resolved(sampling={"top_k": 99}).sampling.top_k == 99


def test_lists_and_maps_are_kept_and_strings_are_not():
    sampling = {
        "logit_bias": {3: 1.5},
        "allowed_token_ids": [1, 2],
        "bad_token_ids": [3],
        "n": 2,
        "best_of": 2,
    }
    both = resolved(
        sampling={**sampling, "bad_words": ["x"]}, stopping={"stop": ["y"], "stop_token_ids": [7]}
    )
    assert dict(both.sampling.logit_bias) == {3: 1.5}
    assert list(both.sampling.allowed_token_ids) == [1, 2] and list(both.sampling.bad_token_ids) == [3]
    assert both.sampling.n == 2 and not both.sampling.HasField("best_of")
    assert not both.sampling.bad_words and not both.stopping.stop
    assert list(both.stopping.stop_token_ids) == [7]


def test_stopping_is_complete():
    stopping = resolved().stopping
    for name in ("max_tokens", "min_tokens", "ignore_eos", "include_stop"):
        assert stopping.HasField(name)
    assert stopping.min_tokens == 0 and not stopping.HasField("time_limit")


def test_without_max_tokens_only_the_context_ends_a_sequence():
    """The limit that is sent cannot be met before the context is full."""
    assert resolved().stopping.max_tokens == 50
    assert resolved(stopping={"max_tokens": 7}).stopping.max_tokens == 7
    assert resolved(stopping={"max_tokens": 2**31 - 1, "min_tokens": 2**31 - 1}).stopping.min_tokens == 50


def test_time_limit_travels():
    assert resolved(stopping={"time_limit": {"seconds": 3}}).stopping.time_limit.seconds == 3
