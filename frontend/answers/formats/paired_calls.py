"""Formats in which a call looks like one of a program."""

from frontend.answers.tables import TEXT, Go, PairNotation, State, Take, ToolFormat, Writing

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
