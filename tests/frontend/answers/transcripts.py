"""What models of each family write, out of their chat templates and documentation, and what it means."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.answers.binding import BoundFormat
from frontend.answers.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.answers.machine import Machine

ARGUMENTS = {"city": 'Paris <b>, "7" {e}', "days": 3, "opts": {"x": [1, "two"], "ok": True, "none": None}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"}},
    "now": {},
}
CALLS = [("get_weather", ARGUMENTS), ("now", {})]
J = json.dumps(ARGUMENTS)
OPTS = json.dumps(ARGUMENTS["opts"])
CITY = ARGUMENTS["city"]


@dataclass(frozen=True)
class Read:
    """The sum of an answer's events."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    """Id, name, arguments."""
    complete: list[bool]

    @property
    def meaning(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for _, name, arguments in self.calls]


def summed(events: Iterable[Event]) -> Read:
    """Adds events up, and checks their order."""
    text, reasoning, calls, complete = "", "", [], []
    is_open = False
    for event in events:
        match event:
            case Text(piece):
                assert piece and not is_open
                text += piece
            case Reasoning(piece):
                assert piece and not is_open
                reasoning += piece
            case CallStart(index, call_id, name):
                assert not is_open and index == len(calls)
                calls.append((call_id, name, ""))
                is_open = True
            case Arguments(index, piece):
                assert piece and is_open and index == len(calls) - 1
                call_id, name, before = calls[-1]
                calls[-1] = (call_id, name, before + piece)
            case CallEnd(index, whole):
                assert is_open and index == len(calls) - 1
                complete.append(whole)
                is_open = False
    assert not is_open
    return Read(text, reasoning, calls, complete)


def bound(tools: str | None, reasoning: str | None = None, special: Sequence[str] = ()) -> BoundFormat:
    """A table over a tokenizer with these special tokens, from id 1000 on."""
    return BoundFormat(
        TOOL_FORMATS[tools] if tools is not None else None,
        REASONING_FORMATS[reasoning] if reasoning is not None else None,
        {1000 + place: text for place, text in enumerate(special)},
    )


def new_id(call: int) -> str:
    return f"id{call}"


def machine(table: BoundFormat, prompt_end: str = "") -> Machine:
    return Machine(table, SCHEMAS, new_id, state=table.state_after(prompt_end))


def read(table: BoundFormat, pieces: Iterable[str], prompt_end: str = "") -> Read:
    """Reads an answer that comes in pieces."""
    reading = machine(table, prompt_end)
    events = [event for piece in pieces for event in reading.feed(piece)]
    return summed(events + reading.finish())


def _python(value: Any) -> str:
    return repr(value)


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return (
        {True: "true", False: "false", None: "None"}[value] if value is None or value is True else str(value)
    )


def _tags(opening: Callable[[str], str], closing: str, newline: str) -> str:
    values = {"city": CITY, "days": "3", "opts": OPTS}
    return newline.join(f"{opening(key)}{newline}{value}{newline}{closing}" for key, value in values.items())


def _invocations(prefix: str, typed: bool) -> str:
    def opening(key: str) -> str:
        kind = f' string="{"true" if key == "city" else "false"}"' if typed else ""
        return f'<{prefix}parameter name="{key}"{kind}>'

    body = _tags(opening, f"</{prefix}parameter>", "")
    first = f'<{prefix}invoke name="get_weather">\n{body}\n</{prefix}invoke>'
    return f'{first}\n<{prefix}invoke name="now">\n</{prefix}invoke>'


def _objects(name: str = "name", arguments: str = "arguments") -> tuple[str, str]:
    return f'{{"{name}": "get_weather", "{arguments}": {J}}}', f'{{"{name}": "now", "{arguments}": {{}}}}'


ONE, TWO = _objects()
_GEMMA = ",".join(f"{key}:{_gemma(value)}" for key, value in ARGUMENTS.items())
_PYTHON = ", ".join(f"{key}={_python(value)}" for key, value in ARGUMENTS.items())
_QWEN = _tags(lambda key: f"<parameter={key}>", "</parameter>", "\n")
_GLM = "\n".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"
    for key, value in {"city": CITY, "days": "3", "opts": OPTS}.items()
)
_DS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)

TRANSCRIPTS: dict[str, str] = {
    "hermes": f"Let me look.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
    "tool-calls-list": f"Let me look.\n<tool_calls>[{ONE}, {TWO}]</tool_calls>",
    "nemotron": f"Let me look.<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>",
    "phi-4": f"Let me look.<|tool_call|>[{ONE}, {TWO}]<|/tool_call|>",
    "cohere": "Let me look.<|START_ACTION|>[\n    {}\n    {}\n]<|END_ACTION|>".format(
        f'{{"tool_call_id": "id0", "tool_name": "get_weather", "parameters": {J}}},',
        '{"tool_call_id": "id1", "tool_name": "now", "parameters": {}}',
    ),
    "apertus": f'Let me look.<|tools_prefix|>[{{"get_weather": {J}}}, {{"now": {{}}}}]<|tools_suffix|>',
    "granite": f"Let me look.<|tool_call|>[{ONE}, {TWO}]",
    "mistral-list": f'Let me look.[TOOL_CALLS][{ONE[:-1]}, "id": "abc123def"}}, {TWO}]',
    "llama-3": "; ".join(_objects(arguments="parameters")),
    "mistral": f"Let me look.[TOOL_CALLS]get_weather[ARGS]{J}[TOOL_CALLS]now[CALL_ID]id1[ARGS]{{}}",
    "deepseek-v3": (
        f"Let me look.{_DS[0]}{_DS[1]}function{_DS[2]}get_weather\n```json\n{J}\n```{_DS[3]}\n"
        f"{_DS[1]}function{_DS[2]}now\n```json\n{{}}\n```{_DS[3]}{_DS[4]}"
    ),
    "deepseek-v3.1": (
        f"Let me look.{_DS[0]}{_DS[1]}get_weather{_DS[2]}{J}{_DS[3]}{_DS[1]}now{_DS[2]}{{}}{_DS[3]}{_DS[4]}"
    ),
    "kimi-k2": (
        "Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{J}<|tool_call_end|><|tool_call_begin|>functions.now:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "function-tag": f"Let me look.<function=get_weather>{J}</function><function=now>{{}}</function>",
    "harmony": (
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.get_weather <|constrain|>json<|message|>{J}<|call|>"
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
    ),
    "qwen3-coder": (
        f"Let me look.\n\n<tool_call>\n<function=get_weather>\n{_QWEN}\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "seed": (
        f"Let me look.\n<seed:tool_call>\n<function=get_weather>\n{_QWEN}\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>"
    ),
    "minimax-m2": f"Let me look.\n<minimax:tool_call>\n{_invocations('', False)}\n</minimax:tool_call>",
    "deepseek-v3.2": (
        "Let me look.\n\n<｜DSML｜function_calls>\n"
        f"{_invocations('｜DSML｜', True)}\n</｜DSML｜function_calls>"
    ),
    "glm-4.5": (f"Let me look.\n<tool_call>get_weather\n{_GLM}\n</tool_call>\n<tool_call>now\n</tool_call>"),
    "llama-4": f"[get_weather({_PYTHON}), now()]",
    "lfm-2": f"Let me look.<|tool_call_start|>[get_weather({_PYTHON}), now()]<|tool_call_end|>",
    "gemma-4": (
        f"Let me look.<|tool_call>call:get_weather{{{_GEMMA}}}<tool_call|>"
        "<|tool_call>call:now{}<tool_call|>"
    ),
}
"""Format -> an answer with CALLS, and the text "Let me look." where the format has text beside calls."""
