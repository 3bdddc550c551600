"""/v1/responses, driven by the openai package, whose types judge each answer and event."""

import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pagewire.v1 import generation_pb2
from tests.frontend.fakes import END, Output, encode, say, write_checkpoint
from tests.frontend.streams.test_answers import TEMPLATE, script
from tests.patience import soon

EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "of a city", "parameters": WEATHER},
    {"type": "function", "name": "now"},
]
ROOM = {"max_model_len": 2000}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model whose template has tools and reasoning."""
    return write_checkpoint(tmp_path_factory.mktemp("responses"), chat_template_jinja=TEMPLATE)


async def events_of(api, **body):
    """The events of a stream as they come over the wire."""
    answer = await api.post("/v1/responses", model="fake", stream=True, **body)
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        EVENTS.validate_python(events[-1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_a_whole_answer_has_reasoning_text_and_calls(run_api):
    async with run_api(script, engine_options=ROOM) as api:
        body = {"model": "fake", "input": "hi", "tools": TOOLS, "instructions": "be kind", "top_p": 0.9}
        whole = (await api.post("/v1/responses", **body)).json()
        answer = Response.model_validate(whole)
        assert answer.id.startswith("resp_") and answer.status == "completed" and answer.error is None
        assert answer.instructions == "be kind" and answer.temperature == 0.5, "the model's"
        assert answer.top_p == 0.9, "not the float32 that is nearest"
        reasoning, message, first, second = answer.output
        assert reasoning.content[0].text == "hm 🙂" and answer.output_text == "Let me look."
        assert message.status == "completed" and first.call_id != second.call_id
        assert (first.name, json.loads(first.arguments)) == ("get_weather", {"city": "Köln"})
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


async def test_a_stream_tells_of_every_item_and_ends_with_the_whole_answer(run_api):
    async with run_api(script, engine_options=ROOM) as api:
        body = {"input": "hi", "tools": TOOLS, "seed": 5}
        whole = (await api.post("/v1/responses", model="fake", **body)).json()
        events = await events_of(api, **body)
        kinds = [event["type"] for event in events]
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-1] == "response.completed" and kinds.count("response.output_item.done") == 4
        last = events[-1]["response"]

        def content(answer):
            return [
                {name: value for name, value in item.items() if name != "id"} for item in answer["output"]
            ]

        assert content(last) == content(whole) and last["usage"] == whole["usage"]
        for place, item in enumerate(last["output"]):
            of_item = [event for event in events if event.get("output_index") == place]
            deltas = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
            assert deltas == (item.get("arguments") or item["content"][0]["text"])
            assert {event["item_id"] for event in of_item if "item_id" in event} == {item["id"]}


async def test_the_packages_own_stream_puts_it_together(run_api):
    async with run_api(script, engine_options=ROOM) as api:
        async with api.openai.responses.stream(model="fake", input="hi", tools=TOOLS) as stream:
            kinds = [event.type async for event in stream]
            answer = await stream.get_final_response()
        assert answer.output_text == "Let me look." and "response.output_text.delta" in kinds
        assert [item.type for item in answer.output] == ["reasoning", "message", *["function_call"] * 2]


async def test_output_goes_back_as_input(run_api, turns):
    async with run_api(script, engine_options=ROOM, model_path=turns) as api:
        question = [{"role": "user", "content": "hi"}]
        first = await api.openai.responses.create(model="fake", input=question, tools=TOOLS)
        call = next(item for item in first.output if item.type == "function_call")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        await api.openai.responses.create(
            model="fake",
            instructions="be kind",
            input=[*question, *first.output, result, {"role": "user", "content": "and?"}],
            tools=TOOLS,
            store=False,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low", "summary": "auto"},
        )
        assert await api.prompt_of(2) == (
            "[system||be kind|][user||hi|][assistant|hm 🙂|Let me look."
            f'|{call.call_id}:get_weather{{"city": "Köln"}}|{first.output[-1].call_id}:now{{}}|]'
            f"[tool||sunny|{call.call_id}][user||and?|]low"
        )


async def test_fields_reach_the_engine(run_api):
    async with run_api(engine_options={**ROOM, "grammar_engine": "llguidance"}) as api:
        form = {"type": "json_schema", "name": "n", "schema": WEATHER, "strict": True}
        await api.openai.responses.create(
            model="fake",
            input=[{"role": "developer", "content": [{"type": "input_text", "text": "x"}]}],
            text={"format": form},
            max_output_tokens=5,
            temperature=0.25,
            top_p=0.5,
            prompt_cache_key="session",
            metadata={"a": "b"},
            extra_body={"top_k": 3, "seed": 9},
        )
        sent = await soon(api.service.engine.requests.get())
        assert "city" in sent.grammar and sent.stopping.max_tokens == 5
        assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0.25, 0.5, 3)
        assert sent.sampling.seed == 9


async def test_an_answer_that_is_cut_is_incomplete(run_api):
    async with run_api() as api:
        events = await events_of(api, input="hi", max_output_tokens=5)
        last = events[-1]["response"]
        assert events[-1]["type"] == "response.incomplete" and last["status"] == "incomplete"
        assert last["incomplete_details"] == {"reason": "max_output_tokens"}
        (message,) = last["output"]
        assert message["status"] == "incomplete" and message["content"][0]["text"] == "hello"


async def test_logprobs(run_api):
    async with run_api(say(encode("hé"))) as api:  # the last two tokens are one code point together
        include = ["message.output_text.logprobs"]
        events = await events_of(api, input="hi", include=include, top_logprobs=2)
        entries = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]) == "hé".encode()
        assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [entry for delta in deltas for entry in delta["logprobs"]] == entries


async def test_an_abort_is_a_failure(run_api):
    abort = generation_pb2.FINISH_REASON_ABORTED
    async with run_api(lambda request: [Output(encode("he")), Output((), abort)]) as api:
        answer = await api.openai.responses.create(model="fake", input="hi")
        assert answer.status == "failed" and answer.error.code == "server_error"
        assert answer.output_text == "he"


async def test_a_stream_that_breaks_off_says_so(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        stream = await api.openai.responses.create(model="fake", input="hi", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                sent = api.service.engine.requests.get_nowait()
                await api.service.engine.fail(sent.handle, 13, "ENGINE_ERROR", "gone")
        assert event.type == "response.failed" and event.response.error.code == "engine_error"
        assert event.response.output[0].status == "incomplete"


async def test_a_disconnect_aborts_the_request(run_api):
    async with run_api(lambda request: [Output(encode("he"))]) as api:
        stream = await api.openai.responses.create(model="fake", input="hi", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await soon(api.service.engine.aborts.get())


async def test_text_after_calls_is_an_item_of_its_own(run_api):
    text = 'a<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>b'
    tokens = [*encode(text), END]
    end = generation_pb2.FINISH_REASON_EOS

    def one_by_one(request):
        for token in tokens:
            yield Output([token], end, END) if token == END else Output([token])

    async with run_api(one_by_one, engine_options=ROOM) as api:
        last = (await events_of(api, input="hi", tools=TOOLS))[-1]["response"]
        assert "".join(i["content"][0]["text"] for i in last["output"] if i["type"] == "message") == "a\nb"


WRONG = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": "x", "store": True}, "store"),
    ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "truncation": "auto"}, "truncation"),
    ({"input": "x", "n": 2}, "n"),
    ({"input": "x", "max_output_tokens": -1}, "max_output_tokens"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"input": "x", "tools": [{"type": "function", "name": "a b"}]}, "tools[0]"),
    ({"input": "x", "tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    ({"input": "x", "tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
    ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"input": "x", "include": ["file_search_call.results"]}, "include"),
    ({"input": "x", "top_logprobs": 2}, "top_logprobs"),
    ({"input": "x", "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"input": "x", "unheard_of": 1}, "unheard_of"),
    ({"input": "x" * 3000}, "input"),
]


async def test_a_field_that_is_wrong_is_named(run_api):
    async with run_api(engine_options=ROOM) as api:
        for body, param in WRONG:
            answer = await api.post("/v1/responses", model="fake", **body)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["type"] == "invalid_request_error", (body, error)
            assert error["param"].startswith(param) and error["message"].startswith(param), (body, error)
        with pytest.raises(openai.NotFoundError):
            await api.openai.responses.create(model="other", input="x")


async def test_effort_is_the_templates_variable(run_api, turns):
    async with run_api(engine_options=ROOM, model_path=turns) as api:
        await api.openai.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], reasoning_effort="none"
        )
        assert await api.prompt_of(1) == "[user||hi|]none"
