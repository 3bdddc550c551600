"""best_of and beam search: what contradicts what, what is resolved, what a client gets."""

import dataclasses
import math

import grpc
import pytest
from google.rpc import code_pb2

from frontend.errors import InvalidRequest, Unsupported
from frontend.validation.defaults import resolve
from frontend.validation.requests import check_generate
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import Output, details_of, encode, make_request, run_service
from tests.frontend.validation.test_requests import LIMITS

MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
DEFAULTS = generation_pb2.SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    typical_p=0.8,
    frequency_penalty=0,
    presence_penalty=0,
    repetition_penalty=1.2,
    n=1,
)

CONTRADICTIONS = {
    "best_of below n": ({"best_of": 2, "n": 3}, ["sampling.best_of"]),
    "no width": ({"beam_search": {}}, ["sampling.beam_search.width"]),
    "n over width": ({"beam_search": {"width": 2}, "n": 3}, ["sampling.n"]),
    "best_of beams": ({"beam_search": {"width": 3}, "best_of": 3}, ["sampling.best_of"]),
    "temperature": ({"beam_search": {"width": 3}, "temperature": 0.9}, ["sampling.temperature"]),
    "filters": (
        {"beam_search": {"width": 3}, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "typical_p": 0.5},
        ["sampling.top_p", "sampling.top_k", "sampling.min_p", "sampling.typical_p"],
    ),
    "NaN": (
        {"beam_search": {"width": 3, "length_penalty": math.nan}},
        ["sampling.beam_search.length_penalty"],
    ),
    "a huge exponent": (
        {"beam_search": {"width": 3, "length_penalty": -10.5}},
        ["sampling.beam_search.length_penalty"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_by_name(case: str):
    sampling, paths = CONTRADICTIONS[case]
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(sampling=sampling), LIMITS)
    assert list(caught.value.violations) == paths


def test_what_goes_together():
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1, "seed": 5}
    penalties = {"repetition_penalty": 1.5, "bad_token_ids": [4]}
    check_generate(make_request(sampling={"beam_search": {"width": 4}, "n": 4, **neutral}), LIMITS)
    check_generate(make_request(sampling={"beam_search": {"width": 1}, **penalties}), LIMITS)
    check_generate(make_request(sampling={"best_of": 4, "n": 2}), LIMITS)
    check_generate(make_request(sampling={"best_of": 4}, output={"logprobs": {"top_n": 2}}), LIMITS)


def test_many_stop_tokens_are_refused_with_beams_alone():
    stops = {"stop_token_ids": list(range(90))}
    check_generate(make_request(stopping=stops, sampling={"beam_search": {"width": 2}}), LIMITS)
    wide = dataclasses.replace(LIMITS, vocab_size=1000)
    many = {"stop_token_ids": list(range(3, 132))}
    check_generate(make_request(stopping=many), wide)
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(stopping=many, sampling={"beam_search": {"width": 2}}), wide)
    assert list(caught.value.violations) == ["stopping.stop_token_ids"]


def test_log_probabilities_of_beams_are_not_built():
    with pytest.raises(Unsupported) as caught:
        check_generate(make_request(sampling={"beam_search": {"width": 2}}, output={"logprobs": {}}), LIMITS)
    assert list(caught.value.violations) == ["output.logprobs"]


def test_beams_are_resolved_without_the_defaults_of_sampling():
    asked = make_request(sampling={"beam_search": {"width": 3}, "n": 2})
    resolved = resolve(asked, DEFAULTS, LIMITS, seed=0)
    sampling = resolved.sampling
    values = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.typical_p)
    assert values == (1, 1, 0, 0, 1)
    assert sampling.repetition_penalty == pytest.approx(1.2)
    search = sampling.beam_search
    assert (search.width, search.length_penalty, search.early_stopping) == (3, 1.0, False)
    assert search.HasField("early_stopping")
    assert (resolved.num_returned, resolved.is_choice) == (2, False)


def test_best_of_is_n_for_the_engine():
    asked = make_request(sampling={"best_of": 3, "n": 2})
    resolved = resolve(asked, DEFAULTS, LIMITS, seed=0)
    assert resolved.sampling.n == 3 and not resolved.sampling.HasField("best_of")
    assert (resolved.num_returned, resolved.is_choice) == (2, True)
    same = resolve(make_request(sampling={"best_of": 2, "n": 2}), DEFAULTS, LIMITS, seed=0)
    assert (same.num_returned, same.is_choice) == (2, False)


def four_answers(request):
    """Log-probabilities fall with the token id: the second and the fourth are the most probable."""
    first = [Output(encode(text), index=index) for index, text in enumerate(["zz", "ba", "yy", "ab"])]
    last = [Output(encode("c"), MAX_TOKENS, index=index) for index in range(4)]
    return [first, last]


@pytest.mark.parametrize("mode", ["MODE_DELTA", "MODE_CUMULATIVE", "MODE_FINAL"])
async def test_the_likeliest_come_renumbered_in_one_message(checkpoint, model, mode):
    sampling = {"best_of": 4, "n": 2}
    async with run_service(checkpoint, four_answers, model=model) as service:
        messages = await service.generate(sampling=sampling, output={"mode": mode, "token_ids": True})
        unary = await service.generation.GenerateUnary(make_request(sampling=sampling))
        sent = service.engine.requests.get_nowait()
    assert len(messages) == 1
    (message,) = messages
    assert [output.index for output in message.sequences] == [0, 1]
    assert [output.text for output in message.sequences] == ["bac", "abc"]
    assert [list(output.token_ids) for output in message.sequences] == [encode("bac"), encode("abc")]
    assert message.usage.completion_tokens == 12, "all that was sampled"
    assert not any(output.HasField("logprobs") for output in message.sequences)
    assert not any(output.finish.HasField("cumulative_logprob") for output in message.sequences)
    assert [output.text for output in unary.sequences] == ["bac", "abc"]
    assert sent.sampling.n == 4 and sent.HasField("logprobs")


async def test_log_probabilities_of_the_likeliest(checkpoint, model):
    async with run_service(checkpoint, four_answers, model=model) as service:
        (message,) = await service.generate(
            sampling={"best_of": 4, "n": 3}, output={"logprobs": {"top_n": 1}}
        )
    sums = [output.finish.cumulative_logprob for output in message.sequences]
    assert sums == sorted(sums, reverse=True)
    for output in message.sequences:
        assert sum(output.logprobs.logprobs) == output.finish.cumulative_logprob
        assert list(output.logprobs.candidate_counts) == [1, 1, 1]


async def test_best_of_as_many_as_are_returned_streams(checkpoint, model):
    async with run_service(checkpoint, four_answers, model=model) as service:
        messages = await service.generate(sampling={"best_of": 4, "n": 4})
        sent = service.engine.requests.get_nowait()
    assert sum(output.token_count for message in messages for output in message.sequences) == 12
    assert not sent.HasField("logprobs")


async def test_beams_come_in_one_message(checkpoint, model):
    """The engine sends them whole."""

    def beams(request):
        assert request.sampling.beam_search.width == 3
        return [[Output(encode("ab"), MAX_TOKENS), Output(encode("c"), MAX_TOKENS, index=1)]]

    async with run_service(checkpoint, beams, model=model) as service:
        (message,) = await service.generate(sampling={"beam_search": {"width": 3}, "n": 2})
    assert [output.text for output in message.sequences] == ["ab", "c"]


async def test_stop_strings_cut_what_a_search_returns(checkpoint, model):
    def beams(request):
        return [[Output(encode("ab, c"), MAX_TOKENS), Output(encode("abc"), MAX_TOKENS, index=1)]]

    async with run_service(checkpoint, beams, model=model) as service:
        (message,) = await service.generate(
            sampling={"beam_search": {"width": 2}, "n": 2}, stopping={"stop": [", "]}
        )
    first, second = message.sequences
    assert (first.text, first.finish.stop, second.text) == ("ab", ", ", "abc")


@pytest.mark.parametrize("sampling", [{"best_of": 3}, {"beam_search": {"width": 2}}])
async def test_output_delivered_as_a_whole_cannot_be_continued(checkpoint, model, sampling):
    """But a client that holds all of it gets the finish again."""
    held = {"continuation": {"sequences": [{"token_ids": encode("ab")}]}}
    sampling = {**sampling, "temperature": 0}
    async with run_service(checkpoint, model=model) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(sampling=sampling, **held)
        assert caught.value.code().value[0] == code_pb2.INVALID_ARGUMENT
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == "continuation.sequences"
        if "beam_search" in sampling:
            (message,) = await service.generate(sampling=sampling, stopping={"max_tokens": 2}, **held)
            assert message.sequences[0].finish.reason == MAX_TOKENS
