"""Formats that write a call's arguments one by one: each between tags, or in pairs as in a program."""

from frontend.answers.tables import (
    TEXT,
    Go,
    PairNotation,
    State,
    TagWriting,
    Take,
    ToolFormat,
    ValueStyle,
    Writing,
)


def _function_tags(name: str, opens: str, closes: str, *detect: tuple[str, ...]) -> ToolFormat:
    """`<function=f><parameter=k>value</parameter></function>` between two markers."""
    return ToolFormat(
        name,
        opens={opens: Go("function")},
        states={
            "function": State(Take.GAP, {"<function=": Go("name"), closes: Go(TEXT)}),
            "name": State(Take.NAME, {">": Go("parameters")}),
            "parameters": State(
                Take.GAP, {"<parameter=": Go("key"), "</function>": Go("function", ends=True)}
            ),
            "key": State(Take.KEY, {">": Go("value")}),
            "value": State(
                Take.VALUE,
                {
                    "</parameter>": Go("parameters"),
                    # Models forget the closing tag.
                    "\n<parameter=": Go("key"),
                    "\n</function>": Go("function", ends=True),
                },
            ),
        },
        detect=detect,
        writing=Writing(
            f"{opens}\n<function=",
            ">\n",
            f"</function>\n{closes}",
            between="\n",
            tag=TagWriting("<parameter=", ">\n", "\n</parameter>"),
        ),
    )


def _invocations(name: str, *wraps: tuple[str, str], prefix: str, detect: tuple[str, ...]) -> ToolFormat:
    """`<invoke name="f"><parameter name="k">value</parameter></invoke>` between two markers."""
    typed = prefix != ""
    parameter = f'<{prefix}parameter name="'
    key = {'">': Go("value")}
    if typed:
        key = {'" string="true">': Go("string"), '" string="false">': Go("value")}
    states = {
        "name": State(Take.NAME, {'">': Go("parameters")}),
        "parameters": State(Take.GAP, {parameter: Go("key"), f"</{prefix}invoke>": Go("calls", ends=True)}),
        "key": State(Take.KEY, key),
        "value": State(
            Take.VALUE,
            {
                f"</{prefix}parameter>": Go(
                    "parameters", value=ValueStyle.JSON if typed else ValueStyle.BY_SCHEMA
                )
            },
        ),
        "string": State(Take.VALUE, {f"</{prefix}parameter>": Go("parameters", value=ValueStyle.STRING)}),
        "calls": State(
            Take.GAP,
            {f'<{prefix}invoke name="': Go("name"), **{closes: Go(TEXT) for _, closes in wraps}},
        ),
    }
    if not typed:
        del states["string"]
    begin, end = wraps[0]
    tag = TagWriting(parameter, '">', f"</{prefix}parameter>")
    if typed:
        tag = TagWriting(parameter, '" string="false">', tag.close, '" string="true">')
    return ToolFormat(
        name,
        {opens: Go("calls") for opens, _ in wraps},
        states,
        (detect,),
        writing=Writing(
            f'<{prefix}invoke name="',
            '">\n',
            f"</{prefix}invoke>",
            begin=f"{begin}\n",
            between="\n",
            end=f"\n{end}",
            tag=tag,
        ),
    )


QWEN_CODER = _function_tags(
    "qwen3-coder", "<tool_call>", "</tool_call>", ("<tool_call>", "<function=", "<parameter=")
)
"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5."""

SEED = _function_tags("seed", "<seed:tool_call>", "</seed:tool_call>", ("<seed:tool_call>",))
"""Seed-OSS."""

MINIMAX = _invocations(
    "minimax-m2",
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    prefix="",
    detect=("<minimax:tool_call>",),
)
"""MiniMax M2."""

DEEPSEEK_V32 = _invocations(
    "deepseek-v3.2",
    ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    prefix="｜DSML｜",
    detect=("｜DSML｜",),
)
"""DeepSeek V3.2, V4; the tags say which values are strings."""

GLM = ToolFormat(
    "glm-4.5",
    opens={"<tool_call>": Go("name")},
    states={
        "name": State(Take.NAME, {"<arg_key>": Go("key"), "</tool_call>": Go(TEXT, ends=True)}),
        "key": State(Take.KEY, {"</arg_key>": Go("colon")}),
        "colon": State(Take.GAP, {"<arg_value>": Go("value")}),
        "value": State(Take.VALUE, {"</arg_value>": Go("next")}),
        "next": State(Take.GAP, {"<arg_key>": Go("key"), "</tool_call>": Go(TEXT, ends=True)}),
    },
    detect=(("<arg_key>", "<tool_call>"),),
    writing=Writing(
        "<tool_call>",
        "\n",
        "</tool_call>",
        between="\n",
        tag=TagWriting("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
)
"""`<tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 to 5, Ling, Laguna."""


_PYTHON = PairNotation(separator="=", close=")", quotes=('"', "'"), escapes=True)


def _python(name: str, opens: str, closes: str, *detect: tuple[str, ...], bare: bool) -> ToolFormat:
    """`[f(a=1), g()]`. bare: also without markers, as the whole answer."""
    states = {
        "list": State(Take.GAP, {"[": Go("name"), closes: Go(TEXT)}),
        "name": State(Take.NAME, {"(": Go("arguments")}),
        "arguments": State(Take.PAIRS, {}, then="next"),
        "next": State(Take.GAP, {",": Go("name"), "]": Go("end")}),
        "end": State(Take.GAP, {closes: Go(TEXT)}),
    }
    return ToolFormat(
        name,
        opens={opens: Go("list"), closes: Go(TEXT)},
        states=states,
        detect=detect,
        start="list" if bare else TEXT,
        pairs=_PYTHON,
        writing=Writing(
            "",
            "(",
            ")",
            begin="[" if bare else f"{opens}[",
            between=", ",
            end="]" if bare else f"]{closes}",
        ),
    )


LLAMA_4 = _python("llama-4", "<|python_start|>", "<|python_end|>", ("<|python_start|>",), bare=True)
"""`[f(a=1)]` as the whole answer, or between markers: Llama 4."""

LFM_2 = _python("lfm-2", "<|tool_call_start|>", "<|tool_call_end|>", ("<|tool_call_start|>",), bare=False)
"""LFM 2."""

GEMMA_4 = ToolFormat(
    "gemma-4",
    opens={"<|tool_call>call:": Go("name")},
    states={
        "name": State(Take.NAME, {"{": Go("arguments")}),
        "arguments": State(Take.PAIRS, {}, then="end"),
        "end": State(Take.GAP, {"<tool_call|>": Go(TEXT)}),
    },
    detect=(("<|tool_call>call:",),),
    pairs=PairNotation(separator=":", close="}", quotes=('<|"|>',), escapes=False),
    also=('<|"|>',),
    writing=Writing("<|tool_call>call:", "{", "}<tool_call|>"),
)
"""`<|tool_call>call:f{k:<|"|>value<|"|>,n:1}<tool_call|>`, in which a token is the quote: Gemma 4."""
