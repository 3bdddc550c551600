"""What callers write becomes messages; what they leave out stays absent."""

import dataclasses
from typing import get_type_hints

import pytest

from pagewire import BeamSearch, SamplingParams
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_client.params import GenerateOptions, SamplingOptions, generate_request, to_prompt


def request(params: SamplingParams | None = None, **options: object) -> generation_pb2.GenerateRequest:
    return generate_request("hi", params, options, "")


def test_options_are_the_fields_of_the_dataclass():
    assert get_type_hints(SamplingOptions) == get_type_hints(SamplingParams)


def test_what_is_left_out_stays_absent():
    message = request()
    for part in (message.sampling, message.stopping):
        assert part.ListFields() == []
    assert not message.output.HasField("text") and message.output.token_ids


def test_zero_is_a_value():
    message = request(temperature=0, top_k=0, seed=0, max_tokens=0, ignore_eos=False)
    assert message.sampling.HasField("temperature") and message.sampling.HasField("seed")
    assert message.sampling.HasField("top_k") and message.stopping.HasField("max_tokens")
    assert message.stopping.HasField("ignore_eos")


def test_every_field_arrives():
    values = dict(
        temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, typical_p=0.75, frequency_penalty=1.5,
        presence_penalty=-0.5, repetition_penalty=1.25, seed=2**64 - 1, n=4, logit_bias={5: -1.5},
        allowed_token_ids=[1, 2], bad_words=["no"], bad_token_ids=[9],
    )  # fmt: skip
    sampling = request(SamplingParams(**values)).sampling
    for name, value in values.items():
        got = getattr(sampling, name)
        assert (
            dict(got) if isinstance(value, dict) else list(got) if isinstance(value, list) else got
        ) == value
    stopping = request(
        max_tokens=5,
        min_tokens=2,
        stop="end",
        stop_regex="e[nm]d",
        stop_token_ids=[3],
        ignore_eos=True,
        include_stop=True,
        time_limit=1.5,
    ).stopping
    assert (stopping.max_tokens, stopping.min_tokens, list(stopping.stop)) == (5, 2, ["end"])
    assert list(stopping.stop_regex) == ["e[nm]d"]
    assert list(stopping.stop_token_ids) == [3] and stopping.ignore_eos and stopping.include_stop
    assert stopping.time_limit.ToMilliseconds() == 1500
    output = request(text=False, skip_special_tokens=False, echo=True, timings=True).output
    assert (output.text, output.skip_special_tokens, output.echo, output.timings) == (
        False,
        False,
        True,
        True,
    )


def test_messages_may_have_an_interval():
    assert not request().output.HasField("stream_interval")
    assert request(stream_interval=8).output.stream_interval == 8
    with pytest.raises(ValueError, match="stream_interval"):
        request(stream_interval=-1)


def test_no_public_sampling_field_is_forgotten():
    """A field added to the public messages gets a name here."""
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    for message in (generation_pb2.SamplingParams, generation_pb2.StoppingCriteria):
        assert {field.name for field in message.DESCRIPTOR.fields} <= fields


def test_options_override_params():
    message = request(
        SamplingParams(temperature=1, max_tokens=3), temperature=0.5, request_id="r", priority=-1, tenant="t"
    )
    assert (message.sampling.temperature, message.stopping.max_tokens) == (0.5, 3)
    assert (message.request_id, message.priority, message.tenant) == ("r", -1, "t")


def test_cache_options():
    assert not request().HasField("cache")
    assert request(cache_salt="s").cache == generation_pb2.CacheOptions(salt="s")
    assert request(cache_bypass=True).cache == generation_pb2.CacheOptions(bypass=True)


def test_the_model_is_the_clients_unless_said_otherwise():
    assert generate_request("hi", None, {}, "mine").model == "mine"
    assert generate_request("hi", None, {"model": "other"}, "mine").model == "other"


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="temprature"):
        request(temprature=0)
    assert "temperature" in GenerateOptions.__annotations__ or "temperature" in get_type_hints(
        GenerateOptions
    )


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("reasoning_budget", -1, ValueError),
        ("max_tokens", -1, ValueError),
        ("seed", 2**64, ValueError),
        ("priority", 2**31, ValueError),
        ("stop_token_ids", [1, -1], ValueError),
        ("logprobs", -1, ValueError),
        ("repetition", (4, -2), ValueError),
        ("logit_bias", {-1: 1.0}, ValueError),
        ("data_parallel_rank", -1, ValueError),
        ("max_draft_tokens", -1, ValueError),
        ("reasoning_budget", 1.5, TypeError),
        ("top_k", "many", TypeError),
        ("temperature", "hot", TypeError),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused_by_its_name(
    option: str, value: object, error: type[Exception]
):
    with pytest.raises(error, match=f"^{option} must be "):
        request(**{option: value})


def test_prompts_of_every_kind():
    assert to_prompt("hi").text == "hi"
    assert to_prompt([1, 2]).token_ids.ids == [1, 2]
    assert to_prompt([]).WhichOneof("kind") == "token_ids"  # the server says what is wrong with it
    made = prompt_pb2.Prompt(text="x", truncate_to=3)
    assert to_prompt(made) is made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_are_prompts(dtype: str):
    torch = pytest.importorskip("torch")
    values = torch.arange(12).view(4, 3).t().to(getattr(torch, dtype)).requires_grad_()
    made = to_prompt({"prompt_embeds": values}).embeddings
    assert (made.dtype, list(made.shape)) == (dtype, [3, 4])
    read = torch.frombuffer(bytearray(made.data), dtype=getattr(torch, dtype)).view(3, 4)
    assert torch.equal(read, values)
    if dtype != "bfloat16":  # which NumPy has not
        assert to_prompt({"prompt_embeds": values.detach().numpy()}).embeddings == made


@pytest.mark.parametrize("wrong", [{"prompt_embeds": [[1.0]]}, {"prompt_embeds": None}])
def test_other_values_are_no_embeddings(wrong: object):
    with pytest.raises(TypeError, match="prompt_embeds"):
        to_prompt(wrong)  # type: ignore[arg-type]


def test_conversations():
    parts = [{"type": "text", "text": "a"}, {"text": "b"}]
    chat = to_prompt(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "name": "me", "content": parts},
            {"role": "assistant"},
        ]
    ).chat
    assert [message.role for message in chat.messages] == ["system", "user", "assistant"]
    assert [part.text for part in chat.messages[1].content] == ["a", "b"]
    assert chat.messages[1].name == "me" and not chat.messages[2].content


@pytest.mark.parametrize("wrong", [[1, "a"], ["a", "b"], [{"role": "user"}, 1], [1.5]])
def test_other_things_are_no_prompts(wrong: object):
    with pytest.raises(TypeError):
        to_prompt(wrong)


def test_log_probabilities():
    output = request(logprobs=5, prompt_logprobs=[7, 8], prompt_logprobs_start=3).output
    assert output.logprobs.top_n == 5 and list(output.prompt_logprobs.token_ids.ids) == [7, 8]
    assert output.prompt_logprobs_start == 3
    assert request(logprobs="all").output.logprobs.all
    plain = request(logprobs=0).output
    assert plain.HasField("logprobs") and plain.logprobs.WhichOneof("candidates") is None
    assert not plain.HasField("prompt_logprobs") and not plain.HasField("prompt_logprobs_start")
    for wrong in ("some", True):
        with pytest.raises(TypeError):
            request(logprobs=wrong)


@pytest.mark.parametrize("wrong", [4, {"width": 4}])
def test_a_beam_search_is_asked_for_by_its_class(wrong: object):
    assert request(beam_search=BeamSearch(4)).sampling.beam_search.width == 4
    with pytest.raises(TypeError, match=r"pagewire\.BeamSearch, such as BeamSearch\(4\)"):
        request(beam_search=wrong)


@pytest.mark.parametrize("prompt", [b"hi", bytearray(b"hi"), memoryview(b"hi")])
def test_bytes_are_no_token_ids(prompt):
    """They are sequences of int, so that each byte would be a token."""
    with pytest.raises(TypeError, match="not bytes"):
        to_prompt(prompt)


@pytest.mark.parametrize(
    ("prompt", "kind"), [({"prompt": "a"}, "dict"), (iter([1]), "list_iterator"), (5, "int")]
)
def test_other_types_are_named(prompt, kind):
    with pytest.raises(TypeError, match=f"but this is a {kind}"):
        to_prompt(prompt)
