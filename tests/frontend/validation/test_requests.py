"""Every field of a request, by its path."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from frontend.errors import InvalidRequest, Unsupported
from frontend.validation.fields import FIELDS, Kind
from frontend.validation.requests import (
    MAX_ABORTS,
    MAX_DETOKENIZED,
    MAX_PARTS,
    MAX_PROMPTS,
    check_abort,
    check_continuations,
    check_detokenize,
    check_embed,
    check_generate,
    check_tokenize,
)
from frontend.validation.rules import MAX_COUNT, Limits
from pagewire.limits import MAX_CHOICES, MAX_GRAMMAR_BYTES
from pagewire.v1 import generation_pb2, pooling_pb2, tokenizer_pb2
from tests.frontend.fakes import make_request

LIMITS = Limits(
    vocab_size=100,
    max_model_len=50,
    eos_token_ids=frozenset({2}),
    max_sequences=4,
    max_stop_strings=3,
    max_priority=1000,
    max_draft_tokens=8,
    max_logprobs=5,
    has_grammars=True,
    input_embedding_size=3,
    takes_images=True,
)
NAN, INF = math.nan, math.inf

NOT_BUILT = {
    "prompt.media[0].cache_id": {"prompt": {"text": "hi", "media": [{"data": b"x", "cache_id": "a"}]}},
    "prompt.chat.template": {"prompt": {"chat": {"template": "{{ 1 }}"}}},
    "prompt.chat.messages[0].content[1].media.cache_id": {
        "prompt": {
            "chat": {
                "messages": [
                    {"role": "user", "content": [{"text": "a"}, {"media": {"data": b"x", "cache_id": "a"}}]}
                ]
            }
        }
    },
    "output.logprobs": {"sampling": {"beam_search": {"width": 2}}, "output": {"logprobs": {}}},
    "extensions": {"extensions": {"x": 1}},
}
"""Path -> the fields of a request that sets it."""

BAD_FLOATS = (NAN, INF, -INF, -1e-3, -1e30, 1e30)
BAD_VALUES = {
    "request_id": ["a" * 257, "é" * 129, "a\nb", "\x00"],
    "model": ["m" * 257],
    "adapter": ["a" * 257, "\x00"],
    "continuation.adapter_digest": [b"d" * 31, b"d" * 33],
    "continuation.media_digests": [[b"d" * 31], [b"d" * 32] * 17],
    "priority": [1001, -1001, 2**31 - 1, -(2**31)],
    "speculation.max_draft_tokens": [9, 2**32 - 1],
    "reasoning.budget": [MAX_COUNT + 1, 2**32 - 1],
    "tenant": ["t" * 257, "é" * 129, "a\nb"],
    "routing.data_parallel_rank": [1, 2**32 - 1],
    "routing.session_id": ["s" * 257, "a\nb"],
    "prompt.embeddings": [
        {},
        {"dtype": "int8", "shape": [1, 3], "data": bytes(3)},
        {"dtype": "x" * 1000, "shape": [1, 3], "data": bytes(3)},
        {"dtype": "float32", "shape": [3], "data": bytes(12)},
        {"dtype": "float32", "shape": [0, 3]},
        {"dtype": "float32", "shape": [1, 4], "data": bytes(16)},
        {"dtype": "float32", "shape": [1, 1, 3], "data": bytes(12)},
        {"dtype": "float32", "shape": [2**32 - 1, 3], "data": bytes(12)},
        {"dtype": "bfloat16", "shape": [1, 3], "data": bytes(7)},
        {"dtype": "float16", "shape": [1, 3], "data": bytes(12)},
    ],
    "prompt.truncate_to": [0, 2**31],
    "prompt.truncation_side": [9],
    "sampling.temperature": [*BAD_FLOATS, 100.5],
    "sampling.top_p": [*BAD_FLOATS, 0.0, 1.001],
    "sampling.top_k": [2**31, 2**32 - 1],
    "sampling.min_p": [*BAD_FLOATS, 1.001],
    "sampling.typical_p": [*BAD_FLOATS, 0.0, 1.001],
    "sampling.frequency_penalty": [NAN, INF, -INF, -2.001, 2.001],
    "sampling.presence_penalty": [NAN, INF, -INF, -2.001, 2.001],
    "sampling.repetition_penalty": [*BAD_FLOATS, 0.0, 1e-45, 100.5],
    "sampling.n": [0, 5, 2**32 - 1],
    "sampling.best_of": [0, 5, 2**32 - 1],
    "sampling.beam_search.width": [0, 5, 2**32 - 1],
    "sampling.beam_search.length_penalty": [NAN, INF, -INF, 10.001, -10.001],
    "sampling.logit_bias": [{100: 1.0}, {1: NAN}, {1: INF}, {1: 100.5}, {1: -100.5}],
    "sampling.allowed_token_ids": [[100], [2**32 - 1], [1] * 101],
    "sampling.bad_words": [["a"] * 129, [""], ["a" * 1025], ["é" * 513]],
    "sampling.bad_token_ids": [[100], [1] * 4097, list(range(100))],
    "stopping.repetition.max_ngram": [65, 2**32 - 1],
    "stopping.repetition.count": [1, 1001],
    "stopping.max_tokens": [2**31],
    "stopping.min_tokens": [2**31],
    "stopping.stop": [["a"] * 4, [""], ["a", ""], ["a" * 1025]],
    "stopping.stop_regex": [["a"] * 17, [""], ["a" * 1025], ["a", "b$"], ["a*"], ["(a{30}){30}"]],
    "stopping.stop_token_ids": [[100], [1] * 4097],
    "stopping.time_limit": [
        {"seconds": 0},
        {"seconds": -1},
        {"nanos": -1},
        {"seconds": 1, "nanos": -1},
        {"nanos": 1_000_000_000},
        {"seconds": 10**12},
    ],
    "structured_output.json_object": [False],
    "structured_output.json_schema": ["", "x" * (MAX_GRAMMAR_BYTES + 1)],
    "structured_output.regex": ["", "é" * MAX_GRAMMAR_BYTES],
    "structured_output.structural_tag": [""],
    "structured_output.choice.values": [[], [""], ["a"] * (MAX_CHOICES + 1), ["a" * MAX_GRAMMAR_BYTES, "b"]],
    "structured_output.grammar.text": ["", "x" * (MAX_GRAMMAR_BYTES + 1)],
    "structured_output.grammar.syntax": [9],
    "structured_output.backend": ["xgrammar"],
    "output.mode": [4],
    "output.logprobs.top_n": [6, 2**32 - 1],
    "output.logprobs.token_ids.ids": [[1, 1], [100], [1, 2, 3, 4, 5, 6]],
    "output.logprobs.all": [True],
    "output.prompt_logprobs.top_n": [6, 2**32 - 1],
    "output.prompt_logprobs.token_ids.ids": [[1, 1], [100], [1, 2, 3, 4, 5, 6]],
    "output.prompt_logprobs.all": [True],
    "output.stream_interval": [0, 2**31],
    "cache.salt": ["s" * 257],
}
GOOD_VALUES = {
    "request_id": ["a" * 256, "Ünïque 7"],
    "priority": [1000, -1000, 0],
    "speculation.max_draft_tokens": [0, 1, 8],
    "tenant": ["t" * 256, "Zoë & Co."],
    "prompt.embeddings": [
        {"dtype": "float32", "shape": [1, 3], "data": bytes(12)},
        {"dtype": "bfloat16", "shape": [2, 3], "data": bytes(12)},
        {"dtype": "float16", "shape": [2, 3], "data": bytes(12)},
    ],
    "prompt.truncate_to": [1, MAX_COUNT],
    "sampling.temperature": [0.0, -0.0, 1e-45, 100.0],
    "sampling.top_p": [1e-45, 1.0],
    "sampling.top_k": [0, 99, 100, MAX_COUNT],
    "sampling.min_p": [0.0, 1.0],
    "sampling.typical_p": [1.0],
    "sampling.frequency_penalty": [-2.0, 2.0],
    "sampling.presence_penalty": [-2.0, 2.0],
    "sampling.repetition_penalty": [1.0, 100.0],
    "sampling.seed": [0, 2**64 - 1],
    "sampling.n": [1, 4],
    "sampling.best_of": [1],
    "sampling.beam_search.width": [1, 4],
    "sampling.beam_search.length_penalty": [0.0, 10.0, -10.0],
    "sampling.logit_bias": [{99: 100.0}, {0: -100.0}],
    "sampling.allowed_token_ids": [[99], [0] * 100],
    "sampling.bad_words": [["a"] * 128, ["a" * 1024]],
    "sampling.bad_token_ids": [[99], list(range(99))],
    "stopping.repetition": [{"max_ngram": 1, "count": 2}, {"max_ngram": 64, "count": 1000}],
    "stopping.max_tokens": [0, 1, MAX_COUNT],
    "stopping.min_tokens": [0, MAX_COUNT],
    "stopping.stop": [["a"] * 3, ["é" * 512]],
    "stopping.stop_regex": [["[a-z]+!"] * 16, ["a{1,200}b"]],
    "stopping.stop_token_ids": [[99]],
    "structured_output.json_object": [True],
    "structured_output.json_schema": ["{}", "x" * MAX_GRAMMAR_BYTES],
    "structured_output.regex": ["a"],
    "structured_output.structural_tag": ["{}"],
    "structured_output.choice.values": [["a"], ["a"] * MAX_CHOICES],
    "structured_output.grammar.text": ["root ::= x"],
    "output.prompt_logprobs.top_n": [0, 5],
    "output.prompt_logprobs.token_ids.ids": [[], [99, 0, 4, 5, 6]],
    "output.prompt_logprobs.all": [False],
    "output.logprobs.top_n": [0, 5],
    "output.logprobs.token_ids.ids": [[], [99, 0, 4, 5, 6]],
    "output.logprobs.all": [False],
    "stopping.time_limit": [{"nanos": 1}, {"seconds": 3600}],
    "output.mode": [1, 2, 3],
    "output.stream_interval": [1, MAX_COUNT],
    "cache.salt": ["s"],
    "cache.bypass": [True],
}


def request_with(path: str, value) -> generation_pb2.GenerateRequest:
    """A request in which one field is set."""
    first, _, rest = path.partition(".")
    if first == "prompt":
        return make_request(prompt={"text": "hi", rest: value})
    if path == "sampling.beam_search.length_penalty":
        return make_request(sampling={"beam_search": {"width": 1, "length_penalty": value}})
    if path == "structured_output.grammar.syntax":
        return make_request(structured_output={"grammar": {"text": "a", "syntax": value}})
    if path == "structured_output.backend":
        return make_request(structured_output={"regex": "a", "backend": value})
    if path.startswith("continuation."):
        return make_request(sampling={"temperature": 0}, continuation={rest: value})
    for name in reversed(rest.split(".") if rest else []):
        value = {name: value}
    return make_request(**{first: value})


def cases(table: dict) -> list:
    return [
        pytest.param(path, value, id=f"{path}-{place}")
        for path, values in table.items()
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(("path", "value"), cases(BAD_VALUES))
def test_a_bad_value_is_refused_by_its_path(path, value):
    with pytest.raises(InvalidRequest) as caught:
        check_generate(request_with(path, value), LIMITS)
    assert list(caught.value.violations) == [path]
    assert caught.value.reason == "INVALID_FIELD"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("path", "value"), cases(GOOD_VALUES))
def test_a_good_value_passes(path, value):
    check_generate(request_with(path, value), LIMITS)


@pytest.mark.parametrize("path", NOT_BUILT)
def test_what_is_not_built_is_refused_by_its_path(path):
    fields = NOT_BUILT[path]
    chat = fields.get("prompt", {}).get("chat")
    if chat is not None:
        for message in chat.setdefault("messages", [{}]):
            message["role"] = "user"
    with pytest.raises(Unsupported) as caught:
        check_generate(make_request(**fields), LIMITS)
    assert list(caught.value.violations) == [path]
    assert caught.value.reason == "FEATURE_UNSUPPORTED"


def test_the_whole_vocabulary_counts_as_that_many_candidates():
    request = make_request(output={"logprobs": {"all": True}, "prompt_logprobs": {"top_n": 100}})
    check_generate(request, dataclasses.replace(LIMITS, max_logprobs=100))
    with pytest.raises(
        InvalidRequest, match=r"output\.logprobs\.all: must be at most 99 candidates, not 100"
    ):
        check_generate(request, dataclasses.replace(LIMITS, max_logprobs=99))


def test_a_start_needs_something_that_starts():
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(output={"prompt_logprobs_start": 0}), LIMITS)
    assert list(caught.value.violations) == ["output.prompt_logprobs_start"]


def fields_of(descriptor: Descriptor, path: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """All fields of a message and of those inside that the table looks into."""
    for field in descriptor.fields:
        name = f"{path}.{field.name}" if path else field.name
        yield name, field
        if FIELDS.get(name) is Kind.NESTED:
            yield from fields_of(field.message_type, name)


def test_every_field_is_either_judged_or_refused():
    """S9: a field that is new in the protos shows up here, and needs a decision."""
    descriptor = generation_pb2.GenerateRequest.DESCRIPTOR
    all_fields = dict(fields_of(descriptor))
    refused = {path.replace("[0]", "").replace("[1]", "") for path in NOT_BUILT} - FIELDS.keys()
    assert all_fields.keys() == FIELDS.keys() | refused
    judged = {
        path
        for path, field in all_fields.items()
        if path in FIELDS
        and not isinstance(FIELDS[path], Kind)
        and not path.startswith(("prompt.chat", "prompt.media"))
    }
    assert judged == set(BAD_VALUES)


def test_every_number_is_judged():
    """Only seeds are free, as all their values are fine; and what is judged together with other fields."""
    numbers = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_ENUM)
    numbers += (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_INT32)
    free = {
        path
        for path, field in fields_of(generation_pb2.GenerateRequest.DESCRIPTOR)
        if FIELDS.get(path) is Kind.FREE and field.cpp_type in numbers
    }
    together = {
        "output.prompt_logprobs_start",
        "prompt.token_ids.ids",
        "continuation.sequences.index",
        "continuation.sequences.token_ids",
    }
    assert free == {"sampling.seed", *together}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": {}}, "prompt"),
        ({"prompt": {"text": ""}}, "prompt.text"),
        ({"prompt": {"token_ids": {}}}, "prompt.token_ids.ids"),
        ({"prompt": {"chat": {}}}, "prompt.chat.messages"),
        ({"prompt": {"chat": {"messages": [{}]}}}, "prompt.chat.messages[0].role"),
        ({"prompt": {"chat": {"messages": [{"role": "r" * 300}]}}}, "prompt.chat.messages[0].role"),
        (
            {
                "prompt": {
                    "chat": {
                        "messages": [{"role": "user"}],
                        "continue_final_message": True,
                        "add_generation_prompt": True,
                    }
                }
            },
            "prompt.chat.continue_final_message",
        ),
        ({"stopping": {"max_tokens": 3, "min_tokens": 4}}, "stopping.min_tokens"),
        ({"output": {"echo": True, "text": False}}, "output.echo"),
        ({"sampling": {"allowed_token_ids": [5, 6], "bad_token_ids": [6, 5]}}, "sampling.allowed_token_ids"),
        (
            {"sampling": {"allowed_token_ids": [2]}, "stopping": {"min_tokens": 1}},
            "sampling.allowed_token_ids",
        ),
        (
            {
                "sampling": {"bad_token_ids": [token for token in range(100) if token != 2]},
                "stopping": {"min_tokens": 1},
            },
            "sampling.bad_token_ids",
        ),
    ],
)
def test_fields_that_are_missing_or_contradict_one_another(fields, path):
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(**fields), LIMITS)
    assert list(caught.value.violations) == [path]


EMBEDDINGS = {"embeddings": {"dtype": "float16", "shape": [1, 3], "data": bytes(6)}}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": {"truncate_to": 1}}, "prompt.truncate_to"),
        ({"prompt": {"add_special_tokens": False}}, "prompt.add_special_tokens"),
        ({"output": {"echo": True}}, "output.echo"),
        ({"output": {"prompt_token_ids": True}}, "output.prompt_token_ids"),
        ({"output": {"prompt_logprobs": {}}}, "output.prompt_logprobs"),
    ],
)
def test_what_needs_the_token_ids_of_a_prompt_of_embeddings(fields, path):
    prompt = EMBEDDINGS | fields.get("prompt", {})
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(**(fields | {"prompt": prompt})), LIMITS)
    assert list(caught.value.violations) == [path]


def test_embeddings_that_are_not_served():
    """By the engine, and by RPCs that do not generate."""
    with pytest.raises(Unsupported) as caught:
        check_generate(make_request(prompt=EMBEDDINGS), dataclasses.replace(LIMITS, input_embedding_size=0))
    assert list(caught.value.violations) == ["prompt.embeddings"]
    with pytest.raises(Unsupported) as caught:
        check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=[EMBEDDINGS]), LIMITS)
    assert list(caught.value.violations) == ["prompts[0].embeddings"]


PNG = {"data": b"png"}
IN_CHAT = {"chat": {"messages": [{"role": "user", "content": [{"text": "a"}, {"media": PNG}]}]}}


def test_log_probabilities_of_a_prompt_with_media():
    request = make_request(prompt=IN_CHAT, output={"prompt_logprobs": {}})
    with pytest.raises(Unsupported) as caught:
        check_generate(request, LIMITS)
    assert list(caught.value.violations) == ["output.prompt_logprobs"]


def test_media_that_are_not_served():
    """By the engine, and by RPCs that make vectors and scores."""
    blind = dataclasses.replace(LIMITS, takes_images=False)
    for prompt, path in (
        ({"text": "a", "media": [PNG]}, "prompt.media[0]"),
        (IN_CHAT, "prompt.chat.messages[0].content[1].media"),
    ):
        check_generate(make_request(prompt=prompt), LIMITS)
        with pytest.raises(Unsupported, match="no encoder for images") as caught:
            check_generate(make_request(prompt=prompt), blind)
        assert list(caught.value.violations) == [path]
        check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=[prompt]), blind)
        with pytest.raises(Unsupported, match="to generate from") as caught:
            check_embed(pooling_pb2.EmbedRequest(inputs=[prompt]), LIMITS, 8)
        assert list(caught.value.violations) == [path.replace("prompt", "inputs[0]", 1)]
        with pytest.raises(Unsupported, match="to generate from"):
            check_continuations(
                pooling_pb2.ScoreContinuationsRequest(prompt=prompt, continuations=["b"]), LIMITS, 8
            )


BAD_URIS = [
    *("", "x", "https://a.b/c.png", "data:", "data:,a", "data:image/png,a", "data:image/png;base64,"),
    *("data:image/png;base64,%41", "data:;base64,YQ", "data:" + "a" * 300 + ";base64,YQ=="),
]


BAD_FRAMES = [
    {"files": [b"a"], "seconds": [0.0]},
    {"files": [b"a", b""], "seconds": [0.0, 1.0]},
    {"files": [b"a"] * 257, "seconds": [0.0] * 257},
    {"files": [b"a", b"b"], "seconds": [0.0]},
    {"files": [b"a", b"b"], "seconds": [1.0, 0.5]},
    {"files": [b"a", b"b"], "seconds": [-1.0, 0.5]},
    {"files": [b"a", b"b"], "seconds": [0.0, float("nan")]},
]


@pytest.mark.parametrize(
    "media",
    [{"data": b""}, *({"uri": uri} for uri in BAD_URIS), *({"frames": each} for each in BAD_FRAMES)],
)
def test_a_bad_file_is_refused_by_its_path(media):
    (name,) = media
    part = {"role": "user", "content": [{"media": media}]}
    for prompt, path in (
        ({"text": "a", "media": [PNG, media]}, f"prompt.media[1].{name}"),
        ({"chat": {"messages": [part]}}, f"prompt.chat.messages[0].content[0].media.{name}"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_generate(make_request(prompt=prompt), LIMITS)
        assert list(caught.value.violations) == [path]


@pytest.mark.parametrize(
    "uri", ["data:image/png;base64,YQ==", "DATA:;base64,YWI=", "data:a/b;c=d;BASE64,YWJj"]
)
def test_good_data_uris(uri):
    check_generate(make_request(prompt={"text": "a", "media": [{"uri": uri, "mime_type": "x/y"}]}), LIMITS)


@pytest.mark.parametrize(
    ("fields", "path", "match"),
    [
        ({"text": "a", "media": [{}]}, "prompt.media[0]", "is required"),
        ({"text": "a", "media": [PNG] * 17}, "prompt.media[16]", "may have 16"),
        (IN_CHAT | {"media": [PNG]}, "prompt.media", "a chat has media in its messages"),
        ({"media": [PNG]}, "prompt.media", "text or token_ids"),
        ({"text": "a", "media": [PNG], "truncate_to": 5}, "prompt.truncate_to", "combined with media"),
        (
            {"text": "a", "media": [{"uri": "https://a.b/c.png"}]},
            "prompt.media[0].uri",
            "fetching is not served",
        ),
        ({"text": "a", "media": [{"uri": "file:///etc/passwd"}]}, "prompt.media[0].uri", "fetching is not"),
    ],
)
def test_media_that_are_refused(fields, path, match):
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(prompt=fields), LIMITS)
    assert match in caught.value.violations[path]


def test_eos_may_be_the_only_token_where_it_does_not_have_to_wait():
    check_generate(make_request(sampling={"allowed_token_ids": [2]}), LIMITS)
    stopping = {"min_tokens": 1, "ignore_eos": True}
    check_generate(make_request(sampling={"allowed_token_ids": [2]}, stopping=stopping), LIMITS)


def test_all_findings_are_reported_but_not_endlessly_many():
    request = make_request(sampling={"temperature": -1, "top_p": 0, "min_p": 2}, extensions={"x": 1})
    with pytest.raises(InvalidRequest) as caught:
        check_generate(request, LIMITS)
    assert list(caught.value.violations) == ["sampling.temperature", "sampling.top_p", "sampling.min_p"]
    prompts = [{"truncate_to": 0, "text": "a"} for _ in range(100)]
    with pytest.raises(InvalidRequest) as caught:
        check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=prompts), LIMITS)
    assert list(caught.value.violations) == [f"prompts[{place}].truncate_to" for place in range(8)]


def test_conversations_have_an_end():
    """Each part takes a moment of the event loop's time."""
    messages = [{"role": "user", "content": [{"text": "a"}] * 3}] * 4000
    check_generate(make_request(prompt={"chat": {"messages": messages}}), LIMITS)
    for many in (messages * 2, [{"role": "user"}] * MAX_PARTS):
        with pytest.raises(InvalidRequest, match=f"more than {MAX_PARTS} parts"):
            check_generate(make_request(prompt={"chat": {"messages": many}}), LIMITS)


def test_tokenizing_nothing_is_fine_but_no_prompt_is_not():
    check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=[{"text": ""}]), LIMITS)
    for prompts in ([], [{"text": ""}] * (MAX_PROMPTS + 1)):
        with pytest.raises(InvalidRequest, match="prompts"):
            check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=prompts), LIMITS)
    with pytest.raises(InvalidRequest, match=r"prompts\[1\]"):
        check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=[{"text": ""}, {}]), LIMITS)
    with pytest.raises(InvalidRequest, match=r"prompts\[0\].media"):
        check_tokenize(tokenizer_pb2.TokenizeRequest(prompts=[{"text": "", "media": [{}]}]), LIMITS)


def test_detokenize_and_abort():
    check_detokenize(tokenizer_pb2.DetokenizeRequest(sequences=[{"ids": [99]}, {}]), 100)
    with pytest.raises(InvalidRequest, match=r"sequences\[1\]\.ids"):
        check_detokenize(tokenizer_pb2.DetokenizeRequest(sequences=[{}, {"ids": [100]}]), 100)
    with pytest.raises(InvalidRequest, match="sequences"):
        check_detokenize(tokenizer_pb2.DetokenizeRequest(), 100)
    with pytest.raises(InvalidRequest, match="in all"):
        many = {"ids": [7] * (MAX_DETOKENIZED // 2 + 1)}
        check_detokenize(tokenizer_pb2.DetokenizeRequest(sequences=[many, many]), 100)
    check_abort(generation_pb2.AbortRequest(request_ids=["a"]))
    with pytest.raises(InvalidRequest, match=r"request_ids\[0\]"):
        check_abort(generation_pb2.AbortRequest(request_ids=["a" * 257]))
    with pytest.raises(InvalidRequest, match="request_ids"):
        check_abort(generation_pb2.AbortRequest(request_ids=["a"] * (MAX_ABORTS + 1)))


def test_where_nothing_is_drafted_a_request_may_want_no_draft():
    limits = dataclasses.replace(LIMITS, max_draft_tokens=0)
    check_generate(make_request(speculation=generation_pb2.Speculation(max_draft_tokens=0)), limits)
    with pytest.raises(InvalidRequest) as caught:
        wanted = generation_pb2.Speculation(max_draft_tokens=1)
        check_generate(make_request(speculation=wanted), limits)
    assert "--speculate" in caught.value.violations["speculation.max_draft_tokens"]


def test_where_arrival_decides_there_is_no_priority():
    limits = dataclasses.replace(LIMITS, max_priority=0)
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(priority=1), limits)
    assert "--policy fcfs" in caught.value.violations["priority"]
    check_generate(make_request(tenant="t"), limits)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"structured_output": {"backend": "llguidance"}}, "structured_output"),
        ({"structured_output": {"regex": "a"}, "stopping": {"ignore_eos": True}}, "stopping.ignore_eos"),
        (
            {"structured_output": {"regex": "a"}, "sampling": {"allowed_token_ids": [1]}},
            "sampling.allowed_token_ids",
        ),
        (
            {
                "structured_output": {"regex": "a"},
                "sampling": {"beam_search": {"width": 2}},
                "stopping": {"min_tokens": 1},
            },
            "stopping.min_tokens",
        ),
    ],
)
def test_what_does_not_go_with_structured_output_is_named(fields, path):
    with pytest.raises(InvalidRequest) as caught:
        check_generate(make_request(**fields), LIMITS)
    assert list(caught.value.violations) == [path]


def test_structured_output_needs_an_engine_with_grammars():
    with pytest.raises(Unsupported) as caught:
        check_generate(make_request(structured_output={"regex": "a"}), replace(LIMITS, has_grammars=False))
    assert list(caught.value.violations) == ["structured_output"]
