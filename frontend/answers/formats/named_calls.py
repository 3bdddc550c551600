"""Formats in which the name comes first, and then the arguments as JSON."""

from frontend.answers.tables import (
    NAME,
    NUMBER,
    REASONING,
    TEXT,
    Frames,
    Go,
    State,
    Take,
    ToolFormat,
    Writing,
)

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
_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_OPEN = {_CALLS: Go("calls")}
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
        begin=_CALLS,
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
    writing=Writing(_BEGIN, _SEPARATOR, _END, begin=_CALLS, end=_CALLS_END),
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
