"""/v1/messages and its count of tokens, over raw HTTP in the shapes that Anthropic documents."""

import json

import pytest

from frontend.auth.tokens import add_line, digest_of, entry_line
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import Output, encode, say, write_checkpoint
from tests.frontend.streams.test_answers import TEMPLATE, script
from tests.patience import soon

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"name": "get_weather", "description": "of a city", "input_schema": WEATHER},
    {"type": "custom", "name": "now", "input_schema": {"type": "object"}},
]
ROOM = {"max_model_len": 2000}
ASK = {"max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = "/v1/messages"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model whose template has tools and reasoning."""
    return write_checkpoint(tmp_path_factory.mktemp("messages"), chat_template_jinja=TEMPLATE)


async def events_of(api, **body):
    """The events of a stream as they come over the wire."""
    answer = await api.post(MESSAGES, stream=True, **{**ASK, **body})
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events):
    """The message that a client makes of its events, checked for their order."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    message = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    opened, inputs = None, {}
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert opened is None and event["index"] == len(message["content"])
            opened = event["index"]
            message["content"].append(event["content_block"])
            continue
        assert event["index"] == opened
        block = message["content"][opened]
        if event["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = json.loads(inputs.pop(opened, "") or "{}")
            opened = None
            continue
        assert event["type"] == "content_block_delta"
        delta = event["delta"]
        if delta["type"] == "input_json_delta":
            inputs[opened] = inputs.get(opened, "") + delta["partial_json"]
        else:
            name = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
            assert block["type"] == name
            block[name] += delta[name]
    assert opened is None
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def without_ids(message):
    """A message without what differs from one request to the next."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


async def test_a_whole_answer_has_thinking_text_and_calls(run_api):
    async with run_api(script, engine_options=ROOM) as api:
        answer = await api.post(MESSAGES, model="fake", tools=TOOLS, system="be kind", **ASK)
        message = answer.json()
        assert message["id"] == f"msg_{answer.headers['x-request-id']}"
        assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "fake")
        thinking, text, first, second = message["content"]
        assert thinking == {"type": "thinking", "thinking": "hm 🙂", "signature": ""}
        assert text == {"type": "text", "text": "Let me look."}
        assert (first["type"], first["name"], first["input"]) == ("tool_use", "get_weather", {"city": "Köln"})
        assert (second["name"], second["input"]) == ("now", {}) and first["id"] != second["id"]
        assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
        usage = message["usage"]
        assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
        assert usage["cache_creation_input_tokens"] == usage["cache_read_input_tokens"] == 0


async def test_a_stream_makes_the_whole_answer(run_api):
    async with run_api(script, engine_options=ROOM) as api:
        whole = (await api.post(MESSAGES, tools=TOOLS, seed=5, **ASK)).json()
        events = await events_of(api, tools=TOOLS, seed=5)
        assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert without_ids(put_together(events)) == without_ids(whole)


async def test_output_goes_back_as_input(run_api, turns):
    async with run_api(script, engine_options=ROOM, model_path=turns) as api:
        first = (await api.post(MESSAGES, tools=TOOLS, **ASK)).json()
        calls = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": calls[0], "content": "sunny"},
            {
                "type": "tool_result",
                "tool_use_id": calls[1],
                "content": [{"type": "text", "text": "12:00"}],
                "is_error": False,
            },
            {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
        ]
        conversation = [
            *ASK["messages"],
            {"role": first["role"], "content": first["content"]},
            {"role": "user", "content": results},
        ]
        system = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]
        body = {**ASK, "messages": conversation, "system": system, "tools": TOOLS}
        body |= {"output_config": {"effort": "low"}, "thinking": {"type": "disabled"}}
        answer = await api.post(MESSAGES, **body)
        assert answer.status_code == 200, answer.text
        expected = (
            "[system||be kind|][user||hi|][assistant|hm 🙂|Let me look."
            f'|{calls[0]}:get_weather{{"city": "Köln"}}|{calls[1]}:now{{}}|]'
            f"[tool||sunny|{calls[0]}][tool||12:00|{calls[1]}][user||and?|]lowoff"
        )
        assert await api.prompt_of(2) == expected
        del body["max_tokens"]
        counted = await api.post(f"{MESSAGES}/count_tokens", **body)
        assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}


async def test_fields_reach_the_engine(run_api):
    async with run_api(engine_options={**ROOM, "grammar_engine": "llguidance"}) as api:
        answer = await api.post(
            MESSAGES,
            max_tokens=5,
            messages=[{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            temperature=0.25,
            top_p=0.5,
            top_k=3,
            stop_sequences=["END"],
            metadata={"user_id": "u"},
            service_tier="auto",
            output_config={"format": {"type": "json_schema", "schema": WEATHER}},
            thinking={"type": "adaptive"},
        )
        assert answer.status_code == 200, answer.text
        sent = await soon(api.service.engine.requests.get())
        assert "city" in sent.grammar and sent.stopping.max_tokens == 5
        assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0.25, 0.5, 3)


async def test_the_last_turn_of_the_assistant_is_continued(run_api):
    async with run_api(engine_options=ROOM) as api:
        prefill = [*ASK["messages"], {"role": "assistant", "content": "The answer"}]
        await api.post(MESSAGES, max_tokens=5, messages=prefill)
        assert (await api.prompt_of(1)).endswith("The answer")


@pytest.mark.parametrize(
    ("options", "reason", "sequence"),
    [
        ({"finish": generation_pb2.FINISH_REASON_MAX_TOKENS}, "max_tokens", None),
        ({"finish": generation_pb2.FINISH_REASON_CONTEXT_LENGTH}, "model_context_window_exceeded", None),
        ({"finish": generation_pb2.FINISH_REASON_EOS}, "end_turn", None),
        ({"stop_sequences": ["ll"]}, "stop_sequence", "ll"),
    ],
)
async def test_stop_reasons(run_api, options, reason, sequence):
    finish = options.pop("finish", generation_pb2.FINISH_REASON_MAX_TOKENS)
    async with run_api(say(encode("he"), encode("llo"), finish=finish)) as api:
        body = {**ASK, "max_tokens": 5, **options}
        whole = (await api.post(MESSAGES, **body)).json()
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
        assert put_together(await events_of(api, **body))["stop_reason"] == reason


async def test_arguments_that_are_cut_are_handed_over_as_text(run_api):
    cut = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "K'
    async with run_api(say(*([token] for token in encode(cut))), engine_options=ROOM) as api:
        message = (await api.post(MESSAGES, tools=TOOLS, **{**ASK, "max_tokens": len(encode(cut))})).json()
        assert message["stop_reason"] == "max_tokens"
        assert message["content"][-1]["input"] == {"INVALID_JSON": '{"city": "K'}


async def test_an_abort_is_an_error(run_api):
    abort = generation_pb2.FINISH_REASON_ABORTED
    async with run_api(lambda request: [Output(encode("he")), Output((), abort)]) as api:
        whole = await api.post(MESSAGES, **ASK)
        assert whole.status_code >= 400 and whole.json()["type"] == "error"
        events = await events_of(api)
        assert events[-1]["type"] == "error" and "message_stop" not in {event["type"] for event in events}


async def test_a_stream_that_breaks_off_says_so(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        async with api.http.stream("POST", MESSAGES, json={**ASK, "stream": True}) as answer:
            lines = []
            async for line in answer.aiter_lines():
                lines.append(line)
                if "text_delta" in line:
                    sent = api.service.engine.requests.get_nowait()
                    await api.service.engine.fail(sent.handle, 13, "ENGINE_ERROR", "gone")
        error = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
        assert error["type"] == "error" and error["error"]["type"] == "api_error"


WRONG = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "x"}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
        "messages[0].content[0].input",
    ),
    (
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
            ]
        },
        "messages",
    ),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0]"),
    ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "absent"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "auto", "name": "now"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),  # no grammar engine
    ({"thinking": {"type": "disabled"}}, "thinking.type"),  # the template always thinks
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"output_config": {"effort": "high"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"temperature": "warm"}, "temperature"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"container": "x"}, "container"),
]


async def test_a_field_that_is_wrong_is_named(run_api):
    async with run_api(engine_options=ROOM) as api:
        for changes, name in WRONG:
            answer = await api.post(MESSAGES, **{**ASK, **changes})
            content = answer.json()
            assert answer.status_code == 400 and content["type"] == "error", (changes, content)
            assert content["error"]["type"] == "invalid_request_error"
            assert content["error"]["message"].startswith(name), (changes, content)
        other = await api.post(MESSAGES, model="claude", **ASK)
        assert other.status_code == 404 and other.json()["error"]["type"] == "not_found_error"
        counted = await api.post(f"{MESSAGES}/count_tokens", **ASK)
        assert counted.status_code == 400 and counted.json()["error"]["message"].startswith("max_tokens")


async def test_the_token_comes_in_the_header_of_anthropics_clients(run_api, tmp_path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(add_line("", entry_line(digest_of("alices"), "alice", {})))
    async with run_api(auth_file=str(tokens)) as api:
        for key, status in (("alices", 200), ("others", 401)):
            answer = await api.http.post(MESSAGES, json=ASK, headers={"x-api-key": key})
            assert answer.status_code == status
        assert answer.json()["error"]["type"] == "authentication_error"
        assert (await soon(api.service.engine.requests.get())).tenant == "alice"


async def test_text_of_several_blocks_is_one_message(run_api, turns):
    async with run_api(engine_options=ROOM, model_path=turns) as api:
        blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": role, "content": blocks} for role in ("user", "assistant", "user")]
        await api.post(MESSAGES, max_tokens=5, messages=messages)
        assert (await api.prompt_of(1)).startswith("[user||ab|][assistant||ab|][user||ab|]")
