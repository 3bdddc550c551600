"""Formats in which a call's arguments are JSON: an object with the name in it, or the name and then JSON."""

from frontend.answers.tables import (
    NAME,
    NUMBER,
    REASONING,
    TEXT,
    Frames,
    Go,
    JsonShape,
    State,
    Take,
    ToolFormat,
    Writing,
)

_CALLS = Go("calls")
_SHAPE = JsonShape()


_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '


def _list(opens: str, closes: str = "", before: str = _NAME, behind: str = _ARGUMENTS) -> Writing:
    """A list of JSON objects."""
    return Writing(before, behind, "}", begin=f"{opens}[", between=", ", end=f"]{closes}")


def _between(
    name: str,
    opens: str,
    closes: str,
    *detect: tuple[str, ...],
    shape: JsonShape = _SHAPE,
    writing: Writing | None = None,
) -> ToolFormat:
    """JSON objects, or a list of them, between two markers. writing: of calls; None: a list of them."""
    return ToolFormat(
        name,
        opens={opens: _CALLS},
        states={"calls": State(Take.JSON, {closes: Go(TEXT)})},
        detect=detect,
        json=shape,
        writing=writing or _list(opens, closes),
    )


HERMES = _between(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    ("<tool_call>", "arguments"),
    writing=Writing(f"<tool_call>\n{_NAME}", _ARGUMENTS, "}\n</tool_call>", between="\n"),
)
"""`<tool_call>{"name": "f", "arguments": {}}</tool_call>`: Hermes, Qwen 2.5, Qwen 3, Granite 4, SmolLM 3."""

TOOL_CALLS_LIST = _between("tool-calls-list", "<tool_calls>", "</tool_calls>", ("<tool_calls>",))
"""`<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>`: Apriel, MiniMax M1."""

NEMOTRON = _between("nemotron", "<TOOLCALL>", "</TOOLCALL>", ("<TOOLCALL>",))
"""`<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>`: Nemotron Nano 2."""

PHI_4 = _between("phi-4", "<|tool_call|>", "<|/tool_call|>", ("<|tool_call|>", "<|/tool_call|>"))
"""`<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`: Phi-4-mini."""

COHERE = _between(
    "cohere",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    ("<|START_ACTION|>",),
    shape=JsonShape(name="tool_name", arguments=("parameters",), id="tool_call_id"),
    writing=Writing(
        f'{{"tool_call_id": "{NUMBER}", "tool_name": "',
        '", "parameters": ',
        "}",
        begin="<|START_ACTION|>[\n    ",
        between=",\n    ",
        end="\n]<|END_ACTION|>",
    ),
)
"""`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>`: Command."""

APERTUS = _between(
    "apertus",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    ("<|tools_prefix|>",),
    shape=JsonShape(keyed=True),
    writing=_list("<|tools_prefix|>", "<|tools_suffix|>", '{"', '": '),
)
"""`<|tools_prefix|>[{"f": {}}]<|tools_suffix|>`: Apertus."""

GRANITE = ToolFormat(
    "granite",
    opens={"<|tool_call|>": _CALLS},
    states={"calls": State(Take.JSON, {"<|tool_call|>": _CALLS})},
    detect=(("<|tool_call|>",),),
    writing=_list("<|tool_call|>"),
)
"""`<|tool_call|>[{"name": "f", "arguments": {}}]`: Granite 3."""

MISTRAL_LIST = ToolFormat(
    "mistral-list",
    opens={"[TOOL_CALLS]": _CALLS},
    states={"calls": State(Take.JSON, {"[TOOL_CALLS]": _CALLS})},
    detect=(("[TOOL_CALLS]",),),
    short_ids=True,
    writing=_list("[TOOL_CALLS]"),
)
"""`[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc123def"}]`: Mistral 7B 0.3, Nemo, Large 2407."""

LLAMA_3 = ToolFormat(
    "llama-3",
    opens={"<|python_tag|>": _CALLS},
    states={"calls": State(Take.JSON, {"<|python_tag|>": _CALLS})},
    detect=(("<|python_tag|>",), ('{"name": function name, "parameters":',)),
    start="calls",
    json=JsonShape(arguments=("parameters", "arguments"), ignored=("type",)),
    writing=Writing(_NAME, '", "parameters": ', "}", between="; "),
)
"""The whole answer is `{"name": "f", "parameters": {}}`, or several with semicolons: Llama 3.1 to 3.3."""


MISTRAL = ToolFormat(
    "mistral",
    opens={"[TOOL_CALLS]": Go("name")},
    states={
        "name": State(Take.NAME, {"[ARGS]": Go("arguments"), "[CALL_ID]": Go("id")}),
        "id": State(Take.ID, {"[ARGS]": Go("arguments")}),
        "arguments": State(Take.ARGUMENTS, {"[TOOL_CALLS]": Go("name", ends=True)}),
    },
    detect=(("[TOOL_CALLS]", "[ARGS]"),),
    short_ids=True,
    writing=Writing("[TOOL_CALLS]", "[ARGS]"),
)
"""`[TOOL_CALLS]f[ARGS]{}`, in some versions with `[CALL_ID]abc123def` before the arguments."""

_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_OPEN = {_CALLS_BEGIN: Go("calls")}
_DEEPSEEK_CALLS = {_BEGIN: Go("type"), _CALLS_END: Go(TEXT)}

DEEPSEEK_V3 = ToolFormat(
    "deepseek-v3",
    opens=_DEEPSEEK_OPEN,
    states={
        "calls": State(Take.GAP, _DEEPSEEK_CALLS),
        "type": State(Take.SKIP, {_SEPARATOR: Go("name")}),
        "name": State(Take.NAME, {"```json": Go("arguments")}),
        "arguments": State(Take.ARGUMENTS, {"```" + _END: Go("calls", ends=True)}),
    },
    detect=((_SEPARATOR, "```json"),),
    writing=Writing(
        f"{_BEGIN}function{_SEPARATOR}",
        "\n```json\n",
        f"\n```{_END}",
        begin=_CALLS_BEGIN,
        between="\n",
        end=_CALLS_END,
    ),
)
"""Calls of a type, with the arguments in a block of code: DeepSeek V3, R1."""

DEEPSEEK_V31 = ToolFormat(
    "deepseek-v3.1",
    opens=_DEEPSEEK_OPEN,
    states={
        "calls": State(Take.GAP, {**_DEEPSEEK_CALLS, _BEGIN: Go("name")}),
        "name": State(Take.NAME, {_SEPARATOR: Go("arguments")}),
        "arguments": State(Take.ARGUMENTS, {_END: Go("calls", ends=True)}),
    },
    detect=((_SEPARATOR,),),
    writing=Writing(_BEGIN, _SEPARATOR, _END, begin=_CALLS_BEGIN, end=_CALLS_END),
)
"""Name, separator, arguments: DeepSeek V3.1."""

KIMI = ToolFormat(
    "kimi-k2",
    opens={"<|tool_calls_section_begin|>": Go("calls")},
    states={
        "calls": State(Take.GAP, {"<|tool_call_begin|>": Go("name"), "<|tool_calls_section_end|>": Go(TEXT)}),
        "name": State(Take.NAME, {"<|tool_call_argument_begin|>": Go("arguments")}),
        "arguments": State(Take.ARGUMENTS, {"<|tool_call_end|>": Go("calls", ends=True)}),
    },
    detect=(("<|tool_call_argument_begin|>",),),
    call_name=rf"(?P<id>(?:functions\.)?(?P<name>{NAME}):\d+)",
    writing=Writing(
        "<|tool_call_begin|>functions.",
        f":{NUMBER}<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        begin="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
    ),
)
"""The model writes the id, `functions.f:0`, and the name is in it: Kimi K2."""

FUNCTIONARY = ToolFormat(
    "function-tag",
    opens={"<function=": Go("name")},
    states={
        "name": State(Take.NAME, {">": Go("arguments")}),
        "arguments": State(Take.ARGUMENTS, {"</function>": Go(TEXT, ends=True)}),
    },
    detect=(("<function=", "</function>"),),
    writing=Writing("<function=", ">", "</function>"),
)
"""`<function=f>{}</function>`: Functionary 3.1, and Llama 3.1 with tools of its user's own."""

_MESSAGE = {
    "<|end|>": Go("between"),
    "<|return|>": Go("between"),
    "<|start|>": Go("header"),
    "<|channel|>": Go("header"),
}
HARMONY = ToolFormat(
    "harmony",
    states={
        "header": State(Take.HEADER, {"<|message|>": Go(TEXT)}),
        "between": State(Take.GAP, {"<|start|>": Go("header"), "<|channel|>": Go("header")}),
        "arguments": State(
            Take.ARGUMENTS,
            {
                "<|call|>": Go("between", ends=True),
                "<|end|>": Go("between", ends=True),
                "<|start|>": Go("header", ends=True),
            },
        ),
        REASONING: State(Take.REASONING, _MESSAGE),
        TEXT: State(Take.TEXT, {**_MESSAGE, "<|call|>": Go("between")}),
    },
    detect=(("<|channel|>", "<|message|>", "analysis"),),
    start="header",
    routes=(
        (
            rf"to=(?!(?:assistant|user|functions)\.?(?:[^\w.\-]|$))(?:functions\.)?(?P<name>{NAME})",
            "arguments",
        ),
        (r"<\|channel\|>\s*analysis", REASONING),
    ),
    header=r"\s+(to(=\S*)?)?",
    also=("<|constrain|>",),
    always=True,
    writing=Writing(
        "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>", once=True
    ),
    frames=Frames(
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        aside=("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
        answer="<|channel|>final<|message|>",
    ),
)
"""Messages with a channel: `analysis` is reasoning, `commentary to=functions.f` a call: gpt-oss."""
