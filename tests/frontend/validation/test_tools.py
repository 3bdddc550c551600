"""Tools of a conversation: every bad combination is refused by the name of its field."""

import pytest

from frontend.errors import InvalidRequest, Unsupported
from frontend.validation.requests import check_generate
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2, prompt_pb2

LIMITS = Limits(512, 200, frozenset({2}), 8, 4)
TOOL = {"name": "f", "parameters": "{}"}
MODES = prompt_pb2.ToolChoice


def check(**chat) -> None:
    message = {"role": "user", "content": [{"text": "hi"}]}
    prompt = {"chat": {"messages": [message], **chat}}
    check_generate(generation_pb2.GenerateRequest(prompt=prompt), LIMITS)


@pytest.mark.parametrize(
    "chat",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL, {**TOOL, "name": "g-2.h_i"}], "tool_choice": {"mode": MODES.MODE_AUTO}},
        {"tools": [TOOL], "tool_choice": {"mode": MODES.MODE_NONE}},
        {"enable_thinking": False},
    ],
)
def test_good_ones(chat: dict) -> None:
    check(**chat)


@pytest.mark.parametrize(
    ("chat", "path", "problem"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "f is there twice"),
        ({"tools": [{"parameters": "{}"}]}, "tools[0].name", "must not be empty"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name", "must be 1 to 128 letters"),
        ({"tools": [TOOL], "tool_choice": {"function": "g"}}, "tool_choice.function", "names no tool"),
        ({"tool_choice": {"function": "f"}}, "tool_choice.function", "names no tool"),
        ({"tool_choice": {"mode": MODES.MODE_REQUIRED}}, "tool_choice.mode", "there are no tools"),
        ({"tools": [{"name": f"f{i}"} for i in range(257)]}, "tools", "must be at most 256, not 257"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"arguments": "{}"}]}]},
            "messages[0].tool_calls[0].name",
            "must not be empty",
        ),
    ],
)
def test_bad_ones(chat: dict, path: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(**chat)
    assert problem in caught.value.violations[f"prompt.chat.{path}"]


@pytest.mark.parametrize(
    ("choice", "path"),
    [({"mode": MODES.MODE_REQUIRED}, "tool_choice.mode"), ({"function": "f"}, "tool_choice.function")],
)
def test_choices_that_need_a_grammar_are_refused_by_name(choice: dict, path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        check(tools=[TOOL], tool_choice=choice)
    assert list(caught.value.violations) == [f"prompt.chat.{path}"]
