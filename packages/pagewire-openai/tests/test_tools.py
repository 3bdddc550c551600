"""Tool calls and reasoning in OpenAI's shape, as the openai package puts them together."""

import json

import openai
import pytest

from tests.frontend.fakes import write_checkpoint
from tests.frontend.streams.test_answers import TEMPLATE, script
from tests.patience import soon

ASK = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A model whose template has tools and reasoning."""
    return write_checkpoint(tmp_path_factory.mktemp("tools"), chat_template_jinja=TEMPLATE)


async def test_calls_of_a_whole_answer(run_api):
    async with run_api(script, engine_options={"max_model_len": 2000}) as api:
        answer = await api.openai.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, seed=5)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
        assert choice.message.reasoning_content == "hm 🙂"
        first, second = choice.message.tool_calls
        assert first.type == "function" and first.id != second.id
        assert first.function.name == "get_weather"
        assert json.loads(first.function.arguments) == {"city": "Köln"}
        assert (second.function.name, json.loads(second.function.arguments)) == ("now", {})
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0


async def test_calls_of_a_stream_are_those_of_the_whole_answer(run_api):
    async with run_api(script, engine_options={"max_model_len": 2000}) as api:
        fields = {"model": "fake", "messages": ASK, "tools": TOOLS, "tool_choice": "auto", "seed": 5}
        whole = (await api.openai.chat.completions.create(**fields)).choices[0]
        calls: dict[int, list[str]] = {}
        text = reasoning = ""
        async for chunk in await api.openai.chat.completions.create(**fields, stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, [part.id, part.function.name, ""])
                call[2] += part.function.arguments or ""
        expected = [
            [call.id, call.function.name, call.function.arguments] for call in whole.message.tool_calls
        ]
        assert [calls[index] for index in sorted(calls)] == expected
        assert (text, reasoning) == (whole.message.content, whole.message.reasoning_content)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
        ({"extra_body": {"thinking_token_budget": 5}}, "thinking_token_budget"),
    ],
)
async def test_what_the_engine_has_not_is_named(run_api, fields, param):
    async with run_api(script, engine_options={"max_model_len": 2000}) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.openai.chat.completions.create(model="fake", messages=ASK, **fields)
        assert refused.value.param.startswith(param), refused.value.body


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"tool_choice": "required"}, ("get_weather", "now")),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, ("now",)),
        ({"parallel_tool_calls": False}, ("get_weather", "now")),
    ],
)
async def test_what_is_enforced_reaches_the_engine(run_api, fields, sent):
    options = {"max_model_len": 2000, "grammar_engine": "llguidance"}
    async with run_api(script, engine_options=options) as api:
        await api.openai.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, **fields)
        grammar = (await soon(api.service.engine.requests.get())).grammar
        assert all(text in grammar for text in sent) and ("get_weather" in grammar) == ("get_weather" in sent)


async def test_an_answer_of_another_server_goes_back_as_a_message(run_api, tmp_path):
    """Its fields that say nothing more, or the reasoning under another name, are no errors."""
    call = {"id": "c1", "type": "function", "index": 0}
    call["function"] = {"name": "now", "arguments": "{}", "parsed_arguments": {}}
    said = {"role": "assistant", "content": None, "refusal": "", "annotations": [], "parsed": {"a": 1}}
    hinted = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [hinted]},
        {**said, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "9 h"},
        said,
        {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}},
    ]
    tools = [{**tool, "cache_control": {"type": "ephemeral"}} for tool in TOOLS]
    source = "{% for m in messages %}{{ m.reasoning_content }}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
    folder = write_checkpoint(tmp_path, chat_template_jinja=TEMPLATE + source)
    async with run_api(script, model_path=folder, engine_options={"max_model_len": 2000}) as api:
        answer = await api.post("/v1/chat/completions", model="fake", messages=messages, tools=tools)
        assert answer.status_code == 200, answer.text
        ids = api.service.engine.requests.get_nowait().prompt_token_ids
        messages[1]["reasoning_content"] = messages[1].pop("reasoning")
        await api.post("/v1/chat/completions", model="fake", messages=messages, tools=tools)
        assert api.service.engine.requests.get_nowait().prompt_token_ids == ids
        for message in ({"role": "user", "content": None}, {"role": "assistant"}):
            answer = await api.post("/v1/chat/completions", model="fake", messages=[message])
            assert answer.json()["error"]["param"] == "messages[0].content"
