"""Tools of plain functions, and the loop that calls them."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tokenizers import AddedToken

import pagewire
from frontend.model.info import load_model
from pagewire import AsyncClient
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_client.params import generate_request
from pagewire_client.results import FinishReason, Generation, ToolCall
from pagewire_client.tools import (
    ToolLoopError,
    bound_call,
    choice_after_calls,
    functions_of,
    result_message,
    schema_of,
    to_tool,
    tool,
)
from tests.frontend.fakes import END, Output, byte_level_tokenizer, encode, run_service, write_checkpoint


def get_weather(city: str, days: int = 1, *, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """Returns the weather.

    city: where.
    """
    return {"city": city, "days": days, "unit": unit}


def test_a_function_becomes_a_tool() -> None:
    made = to_tool(get_weather)
    assert (made.name, made.description) == ("get_weather", "Returns the weather.\n\ncity: where.")
    assert not made.strict
    assert json.loads(made.parameters) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
    }


@pytest.mark.parametrize("strict", [True, False])
def test_a_function_with_options(strict: bool) -> None:
    """As a call and as a decorator; it can be called, and its function is found by its name."""

    @tool(strict=strict)
    def now() -> int:
        """The time."""
        return 12

    for made, name in ((now, "now"), (tool(get_weather, strict=strict), "get_weather")):
        assert to_tool(made).strict == strict and to_tool(made).name == name
        assert functions_of([made]) == {name: made.function}
    assert to_tool(now).description == "The time." and now() == 12
    assert pagewire.tool is tool


def test_annotations_that_have_a_schema() -> None:
    def f(a: list[int], b: dict[str, float], c: str | None, d: bool, e: Any, g: list, h: dict) -> None: ...

    assert schema_of(f)["properties"] == {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": "object", "additionalProperties": {"type": "number"}},
        "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "d": {"type": "boolean"},
        "e": {},
        "g": {"type": "array"},
        "h": {"type": "object"},
    }


def test_functions_that_are_no_tools() -> None:
    def unannotated(a): ...
    def variadic(*a: int) -> None: ...
    def unknown(a: complex) -> None: ...

    for function, problem in ((unannotated, "no annotation"), (variadic, "by name"), (unknown, "complex")):
        with pytest.raises(TypeError, match=problem):
            to_tool(function)
    with pytest.raises(TypeError, match="'g' is none"):
        functions_of([get_weather, {"name": "g"}])


def test_tools_may_be_mappings_and_messages() -> None:
    message = to_tool({"name": "f", "description": "d", "parameters": {"type": "object"}})
    assert message == prompt_pb2.Tool(name="f", description="d", parameters='{"type": "object"}')
    assert to_tool(message) is message


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": prompt_pb2.ToolChoice.MODE_AUTO}),
        ("none", {"mode": prompt_pb2.ToolChoice.MODE_NONE}),
        ("required", {"mode": prompt_pb2.ToolChoice.MODE_REQUIRED}),
        ("get_weather", {"function": "get_weather"}),
    ],
)
def test_options_of_a_conversation(choice: str, expected: dict[str, Any]) -> None:
    options = {"tools": [get_weather], "tool_choice": choice, "enable_thinking": False}
    chat = generate_request([{"role": "user", "content": "hi"}], None, options, "").prompt.chat
    assert [tool.name for tool in chat.tools] == ["get_weather"]
    assert chat.tool_choice == prompt_pb2.ToolChoice(**expected)
    assert chat.HasField("enable_thinking") and not chat.enable_thinking
    more = {"parallel_tool_calls": False, "reasoning_budget": 9, "tools": [{"name": "f", "strict": True}]}
    request = generate_request([{"role": "user", "content": "hi"}], None, more, "")
    chat = request.prompt.chat
    assert chat.HasField("parallel_tool_calls") and not chat.parallel_tool_calls and chat.tools[0].strict
    assert request.reasoning.budget == 9
    assert choice_after_calls(choice) == ("none" if choice == "none" else "auto")
    with pytest.raises(TypeError, match="tools is for a conversation"):
        generate_request("hi", None, options, "")


def test_parts_of_calls_add_up() -> None:
    generation = Generation()
    for parts, reasoning in (
        ([(0, "c0", "f", '{"a')], "h"),
        ([(0, "", "", '": 1}'), (1, "c1", "g", "{}")], "m"),
    ):
        calls = [{"index": i, "id": id, "name": name, "arguments": text} for i, id, name, text in parts]
        sequence = {"index": 0, "reasoning": reasoning, "tool_calls": calls}
        generation.add(generation_pb2.GenerateResponse(sequences=[sequence]))
    assert generation.tool_calls == [ToolCall(0, "c0", "f", '{"a": 1}'), ToolCall(1, "c1", "g", "{}")]
    assert generation.reasoning == "hm"
    assert generation.outputs[0].message["tool_calls"][0] == {
        "id": "c0",
        "name": "f",
        "arguments": '{"a": 1}',
    }


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("other", "{}", "there is no tool 'other'"),
        ("get_weather", "{", "no JSON"),
        ("get_weather", "[]", "no JSON object"),
        ("get_weather", "{}", "missing a required argument: 'city'"),
        ("get_weather", '{"city": "a", "x": 1}', "unexpected keyword argument 'x'"),
    ],
)
def test_calls_that_cannot_be_made(name: str, arguments: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        bound_call(ToolCall(0, "c", name, arguments), {"get_weather": get_weather})


def test_results_are_text_or_json() -> None:
    call = ToolCall(0, "c", "f", "{}")
    assert result_message(call, "sunny")["content"] == "sunny"
    assert result_message(call, {"ü": 1}) == {
        "role": "tool",
        "tool_call_id": "c",
        "name": "f",
        "content": '{"ü": 1}',
    }


TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}<|assistant|>"
    "{# <tool_call>{'name', 'arguments'}</tool_call> #}"
)
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def weather_script(request: engine_pb2.AddRequest) -> list[Output]:
    """Calls until the prompt has a result; repeats the call where there is the word "again"."""
    prompt = bytes(token - 5 for token in unpack_u32(request.prompt_token_ids) if 5 <= token < 261)
    called = (b'"unit"' in prompt or b"sunny" in prompt) and b"again" not in prompt
    tokens = [*encode("It is sunny." if called else CALL), END]
    return [Output(tokens, generation_pb2.FINISH_REASON_EOS, END)]


async def test_functions_are_called_until_the_model_answers(tmp_path):
    folder = write_checkpoint(tmp_path, chat_template_jinja=TEMPLATE)
    model = load_model(FrontendConfig(model=str(folder), served_model_name=("fake",)))
    called = []

    async def later(city: str) -> dict[str, Any]:
        called.append(city)
        return get_weather(city)

    later.__name__ = "get_weather"
    options = {"max_model_len": 2000}
    async with (
        run_service(folder, weather_script, model=model, engine_options=options) as service,
        AsyncClient(f"127.0.0.1:{service.port}") as client,
    ):
        question = [{"role": "user", "content": "Weather?"}]
        for functions in ([get_weather], [later]):
            answer = await client.run_tools(question, functions)
            assert (answer.text, answer.finish_reason) == ("It is sunny.", FinishReason.EOS)
        assert called == ["Paris"] and len(question) == 1
        with pytest.raises(ToolLoopError, match="after 3 answers"):
            again = [{"role": "user", "content": "again"}]
            await client.run_tools(again, [get_weather], max_rounds=3)


@pytest.mark.parametrize("strict", [True, False])
async def test_all_functions_of_a_loop_may_be_strict(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def now() -> None: ...

    async def chat(self: AsyncClient, messages: Any, params: Any, **options: Any) -> Generation:
        asked.extend(map(to_tool, options["tools"]))
        return Generation()

    monkeypatch.setattr(AsyncClient, "chat", chat)
    async with AsyncClient("127.0.0.1:1") as client:
        await client.run_tools([], [get_weather, tool(now)], strict=strict)
    assert [(each.name, each.strict) for each in asked] == [("get_weather", strict), ("now", strict)]


def reasoning_script(request: engine_pb2.AddRequest) -> list[Output]:
    tokens = [*encode("<think>\n7 * 13\n</think>\n\nNo."), END]
    return [Output(tokens, generation_pb2.FINISH_REASON_EOS, END)]


@pytest.mark.parametrize(
    ("page", "script", "printed"),
    [
        ("tools", weather_script, ['get_weather {"city": "Paris"}\nIt is sunny.\n', '{"city": "Paris"}\n']),
        ("reasoning", reasoning_script, ["7 * 13 | No. | 17\n", "7 * 13 | No.\n"]),
    ],
)
async def test_the_examples_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str, script: Callable, printed: list[str]
) -> None:
    text = (Path(__file__).parents[3] / f"docs/{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    template = "{{ '<think></think>' if enable_thinking is defined else '' }}" + TEMPLATE
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("</think>", special=False)])
    folder = write_checkpoint(tmp_path, chat_template_jinja=template, tokenizer_json=tokenizer.to_str())
    model = load_model(FrontendConfig(model=str(folder), served_model_name=("fake",)))
    options = {"max_model_len": 2000, "grammar_engine": "llguidance"}
    async with run_service(folder, script, model=model, engine_options=options) as service:
        for example, expected in zip(examples, printed, strict=True):
            example = example.replace("127.0.0.1:50051", f"127.0.0.1:{service.port}")
            code = compile(example, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            await eval(code, {"pagewire": pagewire})
            assert capsys.readouterr().out == expected


def test_an_annotation_that_names_nothing_is_a_type_error() -> None:
    def look(at: "Nothing") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Looks."""

    with pytest.raises(TypeError, match="look: name 'Nothing' is not defined"):
        to_tool(look)
