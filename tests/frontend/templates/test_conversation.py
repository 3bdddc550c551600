"""What templates see of tools, calls, their results and the thinking switch."""

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from frontend.errors import InvalidRequest, Unsupported
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.conversation import read_object
from frontend.templates.taint import taint_of
from pagewire.v1 import prompt_pb2

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}[{{ m.role }}{{ ' ' + m.tool_call_id if m.tool_call_id }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}\n{% endfor %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
)
TEXT_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '<' + call.function.arguments + '>' }}{% endfor %}{% endfor %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT = {
    "messages": [
        {"role": "user", "content": [{"text": "Weather?"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "get_weather", "arguments": '{"city": "Paris", "n": 1}'}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"text": "sunny"}]},
    ],
    "tools": [{"name": "get_weather", "description": "d", "parameters": json.dumps(SCHEMA)}],
}


def template(source: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, {}, max_bytes=1 << 16)


def rendered(chat: dict, source: str = TEMPLATE) -> str:
    compiled = template(source)
    return compiled.render(compiled.read(prompt_pb2.Chat(**chat), "c"), "c")


def test_as_transformers_renders_it() -> None:
    function = {"name": "get_weather", "description": "d", "parameters": SCHEMA}
    call = {"name": "get_weather", "arguments": {"city": "Paris", "n": 1}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    (expected,), _ = render_jinja_template(
        [messages], chat_template=TEMPLATE, tools=[{"type": "function", "function": function}]
    )
    assert rendered(CHAT) == expected


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"tool_call_id": "c1"}, "get_weather"),
        ({"tool_call_id": "c2"}, "get_time"),
        ({"tool_call_id": "c1", "name": "own"}, "own"),
        ({"tool_call_id": "c3"}, "none"),
        ({}, "none"),
        ({"role": "user", "tool_call_id": "c1"}, "none"),
    ],
)
def test_a_result_has_the_name_of_its_call(message: dict, name: str) -> None:
    """OpenAI's tool messages have an id alone, and templates print a name, or refuse what has none."""
    calls = [{"id": "c1", "name": "get_weather"}, {"id": "c2", "name": "get_time"}]
    result = {"role": "tool", "content": [{"text": "sunny"}]} | message
    chat = {"messages": [{"role": "assistant", "tool_calls": calls}, result]}
    source = "{% set m = messages[1] %}{{ m.name or 'none' }}{% if m.tool_calls %}{% endif %}"
    assert rendered(chat, source) == name


def test_an_id_that_is_used_again_names_the_later_call() -> None:
    result = {"role": "tool", "tool_call_id": "0", "content": [{"text": "x"}]}
    turns = [{"role": "assistant", "tool_calls": [{"id": "0", "name": name}]} for name in ("f", "g")]
    chat = {"messages": [turns[0], result, turns[1], result]}
    source = "{% for m in messages %}{{ m.name if m.role == 'tool' and not m.tool_calls }}{% endfor %}"
    assert rendered(chat, source) == "fg"


def test_arguments_are_text_where_the_template_takes_text() -> None:
    assert not template().arguments_are_text
    assert template(TEXT_TEMPLATE).arguments_are_text
    assert '<{"city": "Paris", "n": 1}>' in rendered({"messages": CHAT["messages"]}, TEXT_TEMPLATE)


def test_no_tools_are_shown_where_none_may_be_called() -> None:
    none = {"mode": prompt_pb2.ToolChoice.MODE_NONE}
    assert rendered({**CHAT, "tool_choice": none}) == rendered({"messages": CHAT["messages"]})


@pytest.mark.parametrize("thinks", [False, True])
def test_the_thinking_switch(thinks: bool) -> None:
    assert rendered({**CHAT, "enable_thinking": thinks}).endswith(str(thinks))
    with pytest.raises(Unsupported, match="enable_thinking"):
        rendered({"messages": CHAT["messages"], "enable_thinking": thinks}, TEXT_TEMPLATE)
    both = {**CHAT, "enable_thinking": thinks, "template_kwargs": {"enable_thinking": thinks}}
    with pytest.raises(InvalidRequest, match="set by enable_thinking already"):
        rendered(both)


def test_a_template_that_ignores_tools_or_calls_is_named() -> None:
    with pytest.raises(Unsupported, match=r"c\.tools"):
        rendered(CHAT, TEXT_TEMPLATE)
    with pytest.raises(Unsupported, match=r"c\.messages\[1\]\.tool_calls"):
        rendered({"messages": CHAT["messages"]}, "{{ messages }}{{ tools }}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ("[1]", "must be a JSON object"),
        ('{"a": NaN}', "is not JSON: NaN is no JSON number"),
        ('{"a":' * 100_000, "is nested too deeply"),
        ('{"a":' * 257 + "1" + "}" * 257, "is nested too deeply"),
        ('{"a":' + "[" * 256 + "]" * 256 + "}", "is nested too deeply"),
    ],
)
def test_parameters_and_arguments_are_json_objects(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_object(text, "c.tools[0].parameters")
    assert caught.value.violations == {"c.tools[0].parameters": problem}


def test_all_that_a_client_writes_is_tainted() -> None:
    chat = prompt_pb2.Chat(
        messages=[
            {
                "role": "oracle<",
                "name": "n<",
                "content": [{"text": "<"}, {"text": ">"}],
                "tool_calls": [{"id": "<", "name": "f<", "arguments": '{"<": ["<"]}'}],
            },
            {"role": "tool", "tool_call_id": "<"},
        ],
        tools=[{"name": "f<", "description": "<", "parameters": '{"<": "<"}'}],
        template_kwargs={"effort": "<", "more": {"<": ["<"]}},
    )
    read = template().read(chat, "c")

    def check(value: Any) -> None:
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, list):
            for each in value:
                check(each)
        elif isinstance(value, str) and "<" in value:
            assert taint_of(value) == b"\1" * len(value), value

    check([read.messages, read.tools, read.variables])
    assert taint_of(read.messages[1]["role"]) == bytes(4), "a known role is no free text"


def test_a_developers_messages_are_the_systems_where_the_template_has_no_such_role() -> None:
    chat = {"messages": [{"role": "developer", "content": [{"text": "be kind"}]}]}
    assert rendered(chat).startswith("[system]be kind")
    knows = "{% if messages[0].role == 'developer' %}D{% endif %}" + TEMPLATE
    assert rendered(chat, knows).startswith("D[developer]be kind")
