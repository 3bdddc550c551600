"""Formats in which a call is a JSON object with the name in it."""

from frontend.answers.tables import NUMBER, TEXT, Go, JsonShape, State, Take, ToolFormat, Writing

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
