"""Tools of a conversation: every bad combination is refused by the name of its field."""

from dataclasses import replace

import pytest

from frontend.errors import InvalidRequest, Unsupported
from frontend.validation.requests import check_generate
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2, prompt_pb2

LIMITS = Limits(512, 200, frozenset({2}), 8, 4)
GRAMMARS = replace(LIMITS, has_grammars=True)
TOOL = {"name": "f", "parameters": "{}"}
MODES = prompt_pb2.ToolChoice


def check(limits: Limits = LIMITS, **chat) -> None:
    message = {"role": "user", "content": [{"text": "hi"}]}
    prompt = {"chat": {"messages": [message], **chat}}
    check_generate(generation_pb2.GenerateRequest(prompt=prompt), limits)


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


ENFORCED = [
    ({"tool_choice": {"mode": MODES.MODE_REQUIRED}}, "prompt.chat.tool_choice"),
    ({"tool_choice": {"function": "f"}}, "prompt.chat.tool_choice"),
    ({"tools": [TOOL, {"name": "g", "strict": True}]}, "prompt.chat.tools[1].strict"),
    ({"parallel_tool_calls": False}, "prompt.chat.parallel_tool_calls"),
]


@pytest.mark.parametrize(("chat", "path"), ENFORCED)
def test_what_needs_a_grammar_is_refused_by_name_where_the_engine_has_none(chat: dict, path: str) -> None:
    check(**{"tools": [TOOL], **chat}, limits=GRAMMARS)
    with pytest.raises(Unsupported) as caught:
        check(**{"tools": [TOOL], **chat})
    assert list(caught.value.violations) == [path]


def test_what_only_looks_like_it_needs_none() -> None:
    check(tools=[TOOL], parallel_tool_calls=True)
    check(parallel_tool_calls=False)
    check(tools=[{"name": "g", "strict": True}], tool_choice={"mode": MODES.MODE_NONE})


@pytest.mark.parametrize(
    ("changes", "path", "problem"),
    [
        ({"stopping": {"ignore_eos": True}}, "stopping.ignore_eos", "with prompt.chat.tool_choice: its end"),
        ({"sampling": {"allowed_token_ids": [4]}}, "sampling.allowed_token_ids", "prompt.chat.tool_choice"),
        ({"structured_output": {"regex": "a"}}, "prompt.chat.tool_choice", "the answer is a call"),
    ],
)
def test_required_calls_go_with_no_other_form(changes: dict, path: str, problem: str) -> None:
    request = generation_pb2.GenerateRequest(**changes)
    request.prompt.chat.messages.add(role="user")
    request.prompt.chat.tools.add(name="f")
    request.prompt.chat.tool_choice.mode = MODES.MODE_REQUIRED
    with pytest.raises(InvalidRequest) as caught:
        check_generate(request, GRAMMARS)
    assert problem in caught.value.violations[path]


def test_a_budget_needs_a_conversation() -> None:
    request = generation_pb2.GenerateRequest(prompt={"text": "hi"}, reasoning={"budget": 3})
    with pytest.raises(InvalidRequest) as caught:
        check_generate(request, GRAMMARS)
    assert list(caught.value.violations) == ["reasoning.budget"]
