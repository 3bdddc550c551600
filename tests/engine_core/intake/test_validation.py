"""Validation in the engine core: no message on its socket may raise in the loop."""

import math
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.errors import Code, Refused
from engine_core.intake.validation import _RANGES
from engine_core.request import FinishReason
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.ipc.columns import pack_u32
from pagewire.limits import MAX_COMPILED_BYTES
from pagewire.v1.generation_pb2 import SamplingParams
from pagewire.v1.prompt_pb2 import TokenIds
from tests.engine_core.fakes import EOS, LIMITS, VOCAB, add_request, make
from tests.logprob_columns import listed, top


def changed(change: Callable[[AddRequest], object], **options: object) -> AddRequest:
    message = add_request(**options)  # type: ignore[arg-type]
    change(message)
    return message


def test_a_request_has_all_fields_of_its_message() -> None:
    message = add_request(7, [10, 20, 30], n=2, max_tokens=5, min_tokens=1, stop_token_ids=[9, 4])
    message.bad_words.append(TokenIds(ids=[5, 6]))
    message.grammar = "start: /a/"
    message.stopping.time_limit.FromMilliseconds(1500)
    message.deadline.FromMilliseconds(2500)
    request = make(message, arrival=100.0)
    assert request.handle == 7 and request.request_id == "request-7"
    assert request.prompt.tolist() == [10, 20, 30]
    assert request.parameters.stop_token_ids == (EOS, 4, 9)
    assert request.parameters.bad_words == ((5, 6),)
    assert request.parameters.grammar == "start: /a/" and request.max_drafts == 0
    assert request.parameters.sampling == message.sampling
    assert (request.time_limit_at, request.deadline_at) == (101.5, 102.5)
    assert [sequence.index for sequence in request.sequences] == [0, 1]
    assert request.sequences[0].limit == 8


def test_no_limit_is_no_limit() -> None:
    request = make(add_request())
    assert request.time_limit_at is None and request.deadline_at is None


def test_a_negative_time_has_passed() -> None:
    message = add_request()
    message.deadline.FromMilliseconds(-5)
    assert make(message, arrival=3.0).deadline_at == 3.0


def test_ignored_eos_is_not_among_the_stop_tokens() -> None:
    request = make(add_request(ignore_eos=True, stop_token_ids=[9]))
    assert request.parameters.stop_token_ids == (9,)


def test_requested_log_probabilities() -> None:
    """Position 0 has none, so a prompt of one token has none."""
    message = add_request(prompt=9, logprobs=top(3), prompt_logprobs=listed(4, 1))
    request = make(message)
    assert request.parameters.logprobs == top(3)
    assert request.prompt_logprobs is not None
    assert (request.prompt_logprobs.options, request.prompt_logprobs.next) == (listed(4, 1), 1)
    assert make(add_request(prompt=1, prompt_logprobs=top(0))).prompt_logprobs is None
    assert make(add_request()).prompt_logprobs is make(add_request()).parameters.logprobs is None


REFUSED: dict[str, tuple[Callable[[AddRequest], object], str]] = {
    "more candidates than tokens": (
        lambda m: m.logprobs.CopyFrom(top(VOCAB + 1)),
        "output.logprobs.top_n",
    ),
    "a candidate beyond": (lambda m: m.logprobs.CopyFrom(listed(3, VOCAB)), "output.logprobs.token_ids"),
    "a repeated crowd of candidates": (
        lambda m: m.prompt_logprobs.CopyFrom(listed(*[3] * (VOCAB + 1))),
        "output.prompt_logprobs.token_ids",
    ),
    "a start behind the prompt": (
        lambda m: (m.prompt_logprobs.CopyFrom(top(1)), setattr(m, "prompt_logprobs_start", 5)),
        "output.prompt_logprobs_start",
    ),
    "a prompt behind output": (
        lambda m: (m.prompt_logprobs.CopyFrom(top(1)), m.delivered.add(index=0, token_ids=pack_u32([3]))),
        "output.prompt_logprobs",
    ),
    "no id": (lambda m: m.ClearField("request_id"), "request_id"),
    "priority": (lambda m: setattr(m, "priority", 1001), "priority"),
    "negative priority": (lambda m: setattr(m, "priority", -(2**31)), "priority"),
    "tenant": (lambda m: setattr(m, "tenant", "é" * 129), "tenant"),
    "no prompt": (lambda m: m.ClearField("prompt_token_ids"), "prompt"),
    "half a token": (lambda m: setattr(m, "prompt_token_ids", b"\1\0\0\0\1"), "prompt"),
    "a token beyond": (lambda m: setattr(m, "prompt_token_ids", pack_u32([1, VOCAB])), "prompt"),
    "too long": (lambda m: setattr(m, "prompt_token_ids", pack_u32([1] * 64)), "prompt"),
    "nothing resolved": (lambda m: m.ClearField("sampling"), "sampling.temperature"),
    "no seed": (lambda m: m.sampling.ClearField("seed"), "sampling.seed"),
    "n is 0": (lambda m: setattr(m.sampling, "n", 0), "sampling.n"),
    "n is too large": (lambda m: setattr(m.sampling, "n", 9), "sampling.n"),
    "n is huge": (lambda m: setattr(m.sampling, "n", 2**32 - 1), "sampling.n"),
    "temperature": (lambda m: setattr(m.sampling, "temperature", -0.1), "sampling.temperature"),
    "top_p": (lambda m: setattr(m.sampling, "top_p", 0.0), "sampling.top_p"),
    "typical_p": (lambda m: setattr(m.sampling, "typical_p", 1.5), "sampling.typical_p"),
    "min_p": (lambda m: setattr(m.sampling, "min_p", 1.5), "sampling.min_p"),
    "penalty": (lambda m: setattr(m.sampling, "repetition_penalty", 0.0), "sampling.repetition_penalty"),
    "best_of": (lambda m: setattr(m.sampling, "best_of", 1), "sampling.best_of"),
    "bias beyond": (lambda m: m.sampling.logit_bias.update({VOCAB: 1.0}), "sampling.logit_bias"),
    "endless bias": (lambda m: m.sampling.logit_bias.update({1: math.inf}), "sampling.logit_bias"),
    "allowed": (lambda m: m.sampling.allowed_token_ids.append(VOCAB), "sampling.allowed_token_ids"),
    "bad token": (lambda m: m.sampling.bad_token_ids.append(2**32 - 1), "sampling.bad_token_ids"),
    "bad word": (lambda m: m.bad_words.add(ids=[1, VOCAB]), "sampling.bad_words"),
    "long word": (lambda m: m.bad_words.add(ids=[1] * 129), "sampling.bad_words"),
    "many words": (lambda m: [m.bad_words.add(ids=[1, 2]) for _ in range(385)], "sampling.bad_words"),
    "empty word": (lambda m: m.bad_words.add(), "sampling.bad_words"),
    "huge grammar": (lambda m: setattr(m, "grammar", "g" * (MAX_COMPILED_BYTES + 1)), "structured_output"),
    "grammar without an end": (
        lambda m: (setattr(m, "grammar", "g"), setattr(m.stopping, "ignore_eos", True)),
        "structured_output",
    ),
    "grammar and allowed": (
        lambda m: (setattr(m, "grammar", "g"), m.sampling.allowed_token_ids.append(1)),
        "structured_output",
    ),
    "no max_tokens": (lambda m: m.stopping.ClearField("max_tokens"), "stopping.max_tokens"),
    "no min_tokens": (lambda m: m.stopping.ClearField("min_tokens"), "stopping.min_tokens"),
    "a prompt alone and output": (lambda m: setattr(m, "prompt_only", True), "stopping.max_tokens"),
    "min over max": (lambda m: setattr(m.stopping, "min_tokens", 5), "stopping.min_tokens"),
    "stop token": (lambda m: m.stopping.stop_token_ids.append(VOCAB), "stopping.stop_token_ids"),
    "index": (lambda m: m.delivered.add(index=1, token_ids=pack_u32([1])), "continuation.sequences"),
    "too much delivered": (lambda m: m.delivered.add(token_ids=pack_u32([1] * 5)), "continuation.sequences"),
    "odd delivered": (lambda m: m.delivered.add(token_ids=b"\1"), "continuation.sequences"),
    "unknown delivered": (lambda m: m.delivered.add(token_ids=pack_u32([VOCAB])), "continuation.sequences"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    change, field = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        make(changed(change))
    assert refusal.value.field == field
    assert refusal.value.code is Code.INVALID_ARGUMENT
    assert refusal.value.message and refusal.value.reason


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("sampling.logit_bias", lambda m: m.sampling.logit_bias.update(dict.fromkeys(range(4097), 1.0))),
        ("sampling.bad_token_ids", lambda m: m.sampling.bad_token_ids.extend([5] * 4097)),
        ("stopping.stop_token_ids", lambda m: m.stopping.stop_token_ids.extend([5] * 4097)),
    ],
)
def test_what_each_step_reads_is_counted(field: str, change: Callable[[AddRequest], object]) -> None:
    with pytest.raises(Refused, match="at most 4096 tokens") as refusal:
        make(changed(change))
    assert refusal.value.field == field


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ],
)
def test_numbers_must_be_finite(name: str, value: float) -> None:
    """`x < 0` is false for NaN."""
    with pytest.raises(Refused, match="finite"):
        make(changed(lambda message: setattr(message.sampling, name, value)))


def test_an_index_delivered_twice() -> None:
    message = add_request(delivered={0: [1]})
    message.delivered.add(index=0, token_ids=pack_u32([1]))
    with pytest.raises(Refused, match="twice"):
        make(message)


def test_delivered_output_must_fit_into_the_context() -> None:
    with pytest.raises(Refused) as refusal:
        make(add_request(prompt=60, max_tokens=50, delivered={0: [1] * 5}))
    assert refusal.value.reason == "CONTEXT_LENGTH_EXCEEDED"
    make(add_request(prompt=60, max_tokens=50, delivered={0: [1] * 4}))


def test_a_prompt_that_leaves_room_for_one_token_is_served() -> None:
    assert make(add_request(prompt=63)).sequences[0].limit == 64


def test_a_prompt_alone_may_fill_the_context() -> None:
    """The token that is sampled behind it is the last one, and ends it."""
    message = add_request(prompt=64, max_tokens=1)
    message.prompt_only = True
    request = make(message)
    assert request.sequences[0].limit == 65
    assert request.ending(array("I", [9])) == (FinishReason.MAX_TOKENS, 0)
    message.prompt_token_ids += pack_u32([1])
    with pytest.raises(Refused, match="of 65 tokens"):
        make(message)


def test_parameters_that_forbid_every_token() -> None:
    message = changed(lambda m: m.sampling.allowed_token_ids.extend([4, 5]))
    make(message)
    message.sampling.bad_token_ids.extend([5, 4])
    with pytest.raises(Refused, match="forbidden"):
        make(message)
    with pytest.raises(Refused, match="forbidden"):
        make(changed(lambda m: m.sampling.allowed_token_ids.append(EOS), min_tokens=1))
    with pytest.raises(Refused, match="no token"):
        make(changed(lambda m: m.sampling.bad_token_ids.extend(range(VOCAB))))
    make(changed(lambda m: m.sampling.allowed_token_ids.append(EOS)))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_message_is_a_request_or_refused(data: bytes) -> None:
    """A well-formed message with fields of any kind."""
    message = add_request()
    try:
        message.MergeFromString(data)
    except Exception:  # not a message: the sockets' thread drops it
        return
    try:
        request = make(message)
    except Refused:
        return
    assert 1 <= len(request.sequences) <= LIMITS.max_num_seqs


def test_a_grammar_needs_a_worker_that_has_them() -> None:
    message = changed(lambda m: setattr(m, "grammar", "g"))
    with pytest.raises(Refused) as refusal:
        make(message, replace(LIMITS, has_grammars=False))
    assert refusal.value.field == "structured_output"


def test_every_number_of_sampling_has_a_range() -> None:
    fields = SamplingParams.DESCRIPTOR.fields
    assert {field.name for field in fields if field.type == field.TYPE_FLOAT} == set(_RANGES)
