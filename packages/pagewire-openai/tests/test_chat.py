"""/v1/chat/completions, driven by the openai package."""

import asyncio
import json
from asyncio import ensure_future
from contextlib import suppress
from functools import partial
from typing import Any

import openai
import pytest

from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import END, Output, encode, in_time, say
from tests.patience import soon

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
NESTED = json.loads('{"a":' * 31 + "1" + "}" * 31)


async def test_a_whole_answer(run_api):
    async with run_api() as api:
        answer = await api.openai.chat.completions.create(model="fake", messages=HELLO)
        assert answer.object == "chat.completion" and answer.model == "fake"
        assert answer.id.startswith("chatcmpl-") and answer.system_fingerprint.startswith("pw_")
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content) == ("assistant", "hello")
        assert choice.finish_reason == "length" and choice.logprobs is None
        usage = answer.usage
        assert usage.completion_tokens == 5 and usage.total_tokens == usage.prompt_tokens + 5
        assert usage.prompt_tokens_details.cached_tokens == 0


async def test_a_stream(run_api):
    async with run_api() as api:
        stream = await api.openai.chat.completions.create(
            model="fake", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        assert text == "hello"
        assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "length"
        finishing = [each.choices[0] for each in chunks if each.choices and each.choices[0].finish_reason]
        assert [each.delta.content for each in finishing] == [None], "some clients drop what comes with it"
        assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == 5
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert len({chunk.id for chunk in chunks}) == 1


async def test_every_field_reaches_the_engine(run_api):
    async with run_api() as api:
        await api.openai.chat.completions.create(
            model="fake",
            messages=[
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
                },
                {"role": "user", "content": "hi", "name": "ann"},
            ],
            temperature=0.25,
            top_p=0.5,
            seed=-1,
            max_completion_tokens=9,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"7": 2},
            prompt_cache_key="session",
            user="u",
            extra_body={
                "top_k": -1,
                "min_p": 0.125,
                "repetition_penalty": 2,
                "min_tokens": 3,
                "stop_token_ids": [8],
                "ignore_eos": True,
                "priority": -5,
                "cache_salt": "salt",
                "bad_words": ["x"],
            },
        )
        sent = await soon(api.service.engine.requests.get())
        sampling, stopping = sent.sampling, sent.stopping
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 0)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.125, 2)
        assert sampling.seed == (1 << 64) - 1 and dict(sampling.logit_bias) == {7: 2.0}
        assert (stopping.max_tokens, stopping.min_tokens) == (9, 3)
        assert list(stopping.stop_token_ids) == [8] and stopping.ignore_eos
        assert sent.priority == -5 and sent.cache_salt == "salt" and sent.bad_words
        assert unpack_u32(sent.prompt_token_ids)[-1] == 4, "the assistant's header"


async def test_several_sequences(run_api):
    def script(request):
        yield [Output(encode("a"), index=0), Output(encode("b"), index=1)]
        end = generation_pb2.FINISH_REASON_EOS
        yield [Output([END], end, END, index=index) for index in (0, 1)]

    async with run_api(script) as api:
        answer = await api.openai.chat.completions.create(model="fake", messages=HELLO, n=2)
        assert [(each.index, each.message.content) for each in answer.choices] == [(0, "a"), (1, "b")]
        assert {each.finish_reason for each in answer.choices} == {"stop"}
        stream = await api.openai.chat.completions.create(model="fake", messages=HELLO, n=2, stream=True)
        texts = {0: "", 1: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == {0: "a", 1: "b"}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(run_api, stream):
    async with run_api(say(encode("é"))) as api:  # two tokens that are one code point together
        answer = await api.openai.chat.completions.create(
            model="fake", messages=HELLO, logprobs=True, top_logprobs=2, stream=stream
        )
        entries = []
        if stream:
            async for chunk in answer:
                for choice in chunk.choices:
                    entries += choice.logprobs.content if choice.logprobs else []
        else:
            entries = answer.choices[0].logprobs.content
        assert bytes(byte for entry in entries for byte in entry.bytes) == "é".encode()
        assert [len(entry.top_logprobs) for entry in entries] == [2, 2]
        assert all(entry.logprob < 0 for entry in entries)


async def test_stop_strings(run_api):
    async with run_api() as api:
        answer = await api.openai.chat.completions.create(model="fake", messages=HELLO, stop="ll")
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("he", "stop")
        assert choice.stop_reason == "ll"
        answer = await api.openai.chat.completions.create(
            model="fake", messages=HELLO, extra_body={"stop_regex": "[l-n]{2}"}
        )
        choice = answer.choices[0]
        assert (choice.message.content, choice.stop_reason) == ("he", "[l-n]{2}")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].input_audio",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "extra": 1}]}]},
            "messages[0].content[0].extra",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
        ({"messages": HELLO, "temperature": 101}, "temperature"),
        ({"messages": HELLO, "max_tokens": -1}, "max_tokens"),
        ({"messages": HELLO, "max_completion_tokens": -1}, "max_completion_tokens"),
        ({"messages": HELLO, "n": 65}, "n"),
        ({"messages": HELLO, "stop": ["x"] * 65}, "stop"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HELLO, "logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": HELLO, "logit_bias": {"512": 1}}, "logit_bias"),
        ({"messages": HELLO, "unheard_of": 1}, "unheard_of"),
        ({"messages": HELLO, "store": True}, "store"),
        ({"messages": HELLO, "store": 0}, "store"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HELLO, "chat_template_kwargs": {"a": 1e999}}, "body"),
        ({"messages": HELLO, "chat_template_kwargs": NESTED}, "chat_template_kwargs"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": HELLO, "tool_choice": "maybe"}, "tool_choice"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (
            {"messages": HELLO, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
        ),
        (
            {"messages": HELLO, "tool_choice": {"type": "custom", "function": {"name": "f"}}},
            "tool_choice.type",
        ),
    ],
)
async def test_a_field_that_is_wrong_is_named(run_api, body, param):
    async with run_api() as api:
        text = __import__("json").dumps(body).replace("Infinity", "1e999")
        answer = await api.http.post(
            "/v1/chat/completions", content=text, headers={"content-type": "application/json"}
        )
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error", error
        if param != "body":
            assert error["param"] == param and error["message"].startswith(param), error


async def test_null_is_an_absent_field_whatever_its_name(run_api):
    async with run_api() as api:
        told = {"content": "hi", "refusal": None, "annotations": [], "audio": None, "function_call": None}
        messages = [{**told, "role": "assistant", "tool_calls": None}, *HELLO]
        answer = await api.post("/v1/chat/completions", messages=messages, functions=None, store=False)
        assert answer.status_code == 200, answer.text


async def test_refusals_are_written_in_json(run_api):
    async with run_api() as api:
        answer = await api.post("/v1/chat/completions", messages=HELLO, store=True, modalities=["audio"])
        problems = 'store: must be false here; modalities: must be ["text"] here'
        assert answer.json()["error"]["message"] == problems


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_the_id_that_explains_it(run_api, stream):
    async with run_api() as api:
        body = {"messages": HELLO, "stream": stream}
        own = await api.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
        assert own.headers["x-request-id"] == "mine"
        drawn = await api.http.post("/v1/completions", json={"prompt": "hi", "stream": stream})
        assert f'"id":"cmpl-{drawn.headers["x-request-id"]}"' in drawn.text


async def test_usage_is_null_before_the_last_chunk(run_api):
    async with run_api() as api:
        body = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
        lines = (await api.post("/v1/chat/completions", **body)).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""] and '"usage":{' in lines[-3]
        assert all('"usage":null' in line for line in lines[:-3])
        plain = await api.post("/v1/chat/completions", messages=HELLO, stream=True)
        assert '"usage"' not in plain.text


async def test_errors_are_those_that_clients_know(run_api):
    async with run_api() as api:
        create = api.openai.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            await create(model="other", messages=HELLO)
        assert missing.value.code == "model_not_found" and missing.value.param == "model"
        with pytest.raises(openai.BadRequestError) as long:
            await create(model="fake", messages=[{"role": "user", "content": "x" * 300}])
        assert long.value.code == "context_length_exceeded" and long.value.param == "messages"


async def test_a_stream_that_breaks_off_says_so(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        stream = await api.openai.chat.completions.create(model="fake", messages=HELLO, stream=True)
        seen = []
        with pytest.raises(openai.APIError) as broken:
            async for chunk in stream:
                seen += [choice.delta.content for choice in chunk.choices if choice.delta.content]
                if seen:
                    sent = api.service.engine.requests.get_nowait()
                    await api.service.engine.fail(sent.handle, 13, "ENGINE_ERROR", "gone") if sent else None
                    seen.append("")
                    api.service.engine.requests.put_nowait(None)
        assert seen[0] == "he" and broken.value.code == "engine_error"


def limit(seconds: float) -> dict[str, Any]:
    """The deadline of a request."""
    return {"extra_headers": {"X-Request-Timeout": str(seconds)}}


async def begun_in_time(api: Any) -> Any:
    """Returns a stream that has begun before its deadline: a busy machine needs more time for that."""
    for seconds in (0.3, 3.0, 30.0):
        with suppress(openai.APIStatusError):
            return await api.openai.chat.completions.create(
                model="fake", messages=HELLO, stream=True, **limit(seconds)
            )
    raise AssertionError("no stream begins")


async def test_a_deadline_within_a_stream_is_its_last_event(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        stream = await begun_in_time(api)
        with pytest.raises(openai.APIError) as late:
            async for _ in stream:
                pass
        assert late.value.code == "deadline_exceeded"
        await soon(api.service.engine.aborts.get())


async def test_a_disconnect_aborts_the_request(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        stream = await api.openai.chat.completions.create(model="fake", messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await soon(api.service.engine.aborts.get())
        while api.service.frontend.limits.num_calls:
            await asyncio.sleep(0.01)
        counters = api.service.frontend.counters
        assert counters.outcomes["cancelled"] == 1
        assert counters.http_requests["/v1/chat/completions", "499"] == 1


async def test_the_clients_deadline_ends_the_request(run_api):
    async with run_api(lambda request: []) as api:
        create = partial(api.openai.chat.completions.create, model="fake", messages=HELLO)
        call, sent, _ = await in_time(api.service, lambda seconds: ensure_future(create(**limit(seconds))))
        with pytest.raises(openai.APIStatusError) as late:
            await call
        assert late.value.status_code == 504
        assert sent.HasField("deadline")
        await soon(api.service.engine.aborts.get())


async def test_both_names_of_the_limit_may_say_the_same(run_api):
    async with run_api() as api:
        answer = await api.post(CHAT, messages=HELLO, max_tokens=3, max_completion_tokens=3)
        assert answer.status_code == 200, answer.text
        assert api.service.engine.requests.get_nowait().stopping.max_tokens == 3
        answer = await api.post(CHAT, messages=HELLO, max_tokens=4, max_completion_tokens=3)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens"


NEUTRAL = {
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "typical_p": 1.0,
    "spaces_between_special_tokens": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "cache_prompt": True,
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
async def test_fields_of_other_servers_are_taken_where_they_change_nothing(run_api, path):
    """Clients send them in each request, with their defaults."""
    asked = {CHAT: {"messages": HELLO}, "/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}
    async with run_api() as api:
        answer = await api.post(path, **asked[path], **NEUTRAL)
        assert answer.status_code == 200, answer.text
        for name, value in NEUTRAL.items():
            other = not value if isinstance(value, bool) else 0.5
            answer = await api.post(path, **asked[path], **{name: other})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name
