"""The machine over all tables: every cut, every prefix, malformed text, and marks that are only text."""

import json
import random
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.answers.call_writer import nested_value
from frontend.answers.events import BREAK
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.answers.tables import Take, ValueStyle
from tests.frontend.answers.transcripts import CALLS, TRANSCRIPTS, bound, machine, read

BARE = ("llama-3", "llama-4")
"""Formats whose calls are the whole answer."""
FORMATS = sorted(TOOL_FORMATS)


def test_every_format_has_a_transcript() -> None:
    assert sorted(TRANSCRIPTS) == FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_a_transcript_is_understood(name: str) -> None:
    found = read(bound(name), [TRANSCRIPTS[name]])
    assert found.meaning == CALLS
    assert found.complete == [True, True]
    assert found.text == ("" if name in BARE else "Let me look.")
    assert found.reasoning == ""


@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_gives_the_same_events(name: str) -> None:
    table, text = bound(name), TRANSCRIPTS[name]
    whole = read(table, [text])
    assert read(table, list(text)) == whole
    for cut in range(len(text) + 1):
        assert read(table, [text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_known_is_a_function_of_the_text_so_far(name: str) -> None:
    """A continued stream reads what was delivered in other pieces, and must be where the broken one was."""
    table, text = bound(name), TRANSCRIPTS[name]
    slowly = machine(table)
    events = []
    for end in range(1, len(text) + 1):
        events += slowly.feed(text[end - 1])
        if end % 7 == 0 or end == len(text):
            assert _merged(machine(table).feed(text[:end])) == _merged(events)


def _merged(events: list) -> list:
    """Pieces of one thing, joined."""
    merged: list = []
    for event in events:
        last = merged[-1] if merged else None
        if last is not None and type(last) is type(event) and hasattr(event, "text"):
            merged[-1] = type(event)(*[*_fields(last)[:-1], last.text + event.text])
        else:
            merged.append(event)
    return merged


def _fields(event: object) -> list:
    return [getattr(event, name) for name in event.__slots__]


@pytest.mark.parametrize("name", FORMATS)
def test_every_prefix_is_read_without_an_error(name: str) -> None:
    """An answer may be cut anywhere: calls before the cut are whole, and none is invented."""
    table, text = bound(name), TRANSCRIPTS[name]
    for end in range(len(text)):
        found = read(table, [text[:end]])
        assert [call[1] for call in found.calls] == [each for each, _ in CALLS][: len(found.calls)]
        for call, complete in zip(found.calls, found.complete, strict=True):
            if complete:
                assert (call[1], json.loads(call[2])) in CALLS


@pytest.mark.parametrize("name", FORMATS)
def test_text_that_only_resembles_calls_stays_text(name: str) -> None:
    table = bound(name, "think" if name != "harmony" else None)
    opens = "" if name == "harmony" else next(iter(TOOL_FORMATS[name].opens))
    frame = "<|channel|>final<|message|>" if name == "harmony" else ""
    for text in ("2 < 3 {", "[1, 2] is a list", '{"answer": 42}', f"say {opens} ?? please", "a <tool_cal"):
        found = read(table, list(frame + text))
        assert found.calls == []
        assert found.text == text


@pytest.mark.parametrize("name", FORMATS)
def test_no_marker_of_a_state_contains_another(name: str) -> None:
    """Else the first one found would depend on where the text is cut."""
    for state in bound(name, None if name == "harmony" else "think").states.values():
        for one in state.markers:
            assert not any(one != other and one in other for other in state.markers)
            assert state.take is not Take.GAP or not one[0].isspace()


def test_a_special_token_cannot_be_imitated() -> None:
    """The text of a special token is text, where the tokenizer has the token."""
    table = bound("kimi-k2", special=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"))
    found = read(table, [TRANSCRIPTS["kimi-k2"]])
    assert found.calls == [] and found.text == TRANSCRIPTS["kimi-k2"]
    marked = TRANSCRIPTS["kimi-k2"]
    for token, text in ((1000, "<|tool_calls_section_begin|>"), (1001, "<|tool_call_begin|>")):
        marked = marked.replace(text, table.marks[token])
    assert read(table, [marked]).meaning == CALLS


def test_a_special_token_in_the_name_of_an_argument_is_spelled() -> None:
    """A lone surrogate stood for it in the arguments, of which no message could be made."""
    special = ("<｜DSML｜function_calls>", "</｜DSML｜parameter>")
    table = bound("deepseek-v3.2", special=special)
    text = TRANSCRIPTS["deepseek-v3.2"].replace('"city" string', '"ci</｜DSML｜parameter>ty" string')
    for token, mark in table.marks.items():
        text = text.replace(special[token - 1000], mark)
    whole = read(table, [text])
    assert whole == read(table, list(text))
    assert "ci</｜DSML｜parameter>ty" in json.loads(whole.calls[0][2])
    assert whole.calls[0][2].encode()


def test_a_special_token_within_arguments_ends_the_call() -> None:
    table = bound("phi-4", special=("<|tool_call|>", "<|/tool_call|>"))
    opening, closing = table.marks[1000], table.marks[1001]
    found = read(table, list(f'{opening}[{{"name": "now", "arguments": {{"a": 1{closing}text'))
    assert [call[1] for call in found.calls] == ["now"]
    assert found.complete == [False] and found.text == "text"


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_reasoning_is_apart(name: str) -> None:
    marks, table = REASONING_FORMATS[name], bound(None, name)
    for text, prompt_end in (
        (f"{marks.open}\nhm\n\nso\n{marks.close}\n\nYes. ", "<|assistant|>"),
        (f"hm\n\nso\n{marks.close}\n\nYes. ", f"<|assistant|>{marks.open}\n"),
    ):
        whole = read(table, [text], prompt_end)
        assert (whole.reasoning, whole.text) == ("hm\n\nso", "Yes. ")
        assert read(table, list(text), prompt_end) == whole


def test_the_reasoning_of_harmony_is_its_analysis() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    )
    found = read(bound("harmony"), list(text))
    assert (found.reasoning, found.text, found.calls) == ("hm", "Yes.", [])


def test_an_answer_of_harmony_that_is_cut() -> None:
    """In a header: that is no text. Behind blank reasoning: that is reasoning."""
    for text in (" to", " to=", " to=functions.f"):
        assert read(bound("harmony"), [text]) == read(bound("harmony"), [])
    assert read(bound("harmony"), ["today is fine"]).text == "today is fine"
    found = read(bound("harmony"), list("<|channel|>analysis<|message|>hm\n\n"))
    assert (found.reasoning, found.text) == ("hm\n\n", "")


def test_json_may_come_in_any_order_and_as_text() -> None:
    table = bound("hermes")
    for text in (
        '<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>',
        '<tool_call> {"name" : "f" , "arguments" :{"a": "}"}}',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"}\\"}"}</tool_call>',
    ):
        found = read(table, list(text))
        assert found.meaning == [("f", {"a": "}"})] and found.text == "" and found.complete == [True]


def test_values_are_cast_by_the_schema() -> None:
    text = (
        "<tool_call><function=get_weather><parameter=city>7</parameter><parameter=days>x</parameter>"
        "<parameter=opts>{'a': None}</parameter><parameter=other>[1]</parameter></function></tool_call>"
    )
    found = read(bound("qwen3-coder"), [text])
    expected = {"city": "7", "days": "x", "opts": {"a": None}, "other": [1]}
    assert found.meaning == [("get_weather", expected)]


NESTED = {
    "qwen3-coder": (
        "<tool_call><function=get_weather><parameter=opts>",
        "</parameter>",
        "</function></tool_call>",
    ),
    "seed": (
        "<seed:tool_call><function=get_weather><parameter=opts>",
        "</parameter>",
        "</function></seed:tool_call>",
    ),
    "minimax-m2": (
        '<minimax:tool_call><invoke name="get_weather"><parameter name="opts">',
        "</parameter>",
        "</invoke></minimax:tool_call>",
    ),
    "deepseek-v3.2": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="get_weather">'
        '<｜DSML｜parameter name="opts" string="false">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke></｜DSML｜function_calls>",
    ),
    "glm-4.5": ("<tool_call>get_weather<arg_key>opts</arg_key><arg_value>", "</arg_value>", "</tool_call>"),
}
"""Format -> what stands before an object, the closing tag behind it, and the rest of the call."""


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize(
    "value",
    [
        {"a": "x{close}y", "b": [1, "{close}"]},
        ["{close}"],
        {"{close}": '"{close}\\'},
    ],
    ids=["values", "a list", "a key, quotes and a backslash"],
)
def test_a_closing_tag_in_a_string_of_a_nested_value_is_text(name: str, value: Any) -> None:
    before, close, after = NESTED[name]
    written = json.dumps(value).replace("{close}", close)
    table, text = bound(name), f"{before}\n{written}\n{close}{after} So."
    whole = read(table, [text])
    assert whole.meaning == [("get_weather", {"opts": json.loads(written)})]
    assert whole.complete == [True] and whole.text == "So."
    assert read(table, list(text)) == whole


@pytest.mark.parametrize("name", NESTED)
def test_a_closing_tag_ends_a_nested_value_that_is_no_json(name: str) -> None:
    """A quote that nothing closes does not hide the rest of the answer; nor does one in bare text."""
    before, close, after = NESTED[name]
    for value in ('{"a": "x\n', 'say "', '{"a": 1}'):
        found = read(bound(name), [f"{before}{value}{close}{after} So."])
        assert [call for _, call, _ in found.calls] == ["get_weather"]
        assert found.complete == [True] and found.text == "So."


def test_a_closing_tag_ends_a_string() -> None:
    """Bare text has no quotes that could protect it."""
    for schema in (
        {"type": "string"},
        {"type": ["object", "string"]},
        {},
        {"anyOf": [{"type": "object"}, {}]},
    ):
        assert nested_value({ValueStyle.BY_SCHEMA}, schema) is None
    for schema in ({"type": ["array", "null"]}, {"anyOf": [{"type": "object"}, {"type": "null"}]}):
        assert nested_value({ValueStyle.BY_SCHEMA}, schema) is not None
        assert nested_value({ValueStyle.STRING}, schema) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3-coder", "<tool_call><function=f><parameter=x>{}</parameter></function></tool_call>"),
        ("llama-4", "[f(x={})]"),
        ("gemma-4", "<|tool_call>call:f{{x:{}}}<tool_call|>"),
    ],
)
def test_numbers_beyond_all_are_the_largest(name: str, text: str) -> None:
    for written, meant in (("-1e999", -sys.float_info.max), ("2.5", 2.5), ("1e999", sys.float_info.max)):
        assert read(bound(name), [text.format(written)]).meaning == [("f", {"x": meant})]


HALF = "\\ud83d"
"""Half of an emoji, as JSON escapes it."""
HALVES = {
    "hermes": f'<tool_call>{{"id": "{HALF}", "name": "f", "arguments": "{HALF}"}}</tool_call>',
    "llama-3": f'{{"name": "f", "parameters": "{HALF}"}}',
    "mistral-list": f'[TOOL_CALLS][{{"name": "f", "arguments": {{"a": "{HALF}"}}}}]',
    "cohere": f'<|START_ACTION|>[{{"tool_call_id": "{HALF}", "tool_name": "f", "parameters": {{}}}}]',
    "apertus": f'<|tools_prefix|>[{{"f": "{HALF}"}}]<|tools_suffix|>',
    "qwen3-coder": f'<tool_call><function=f><parameter=a>["{HALF}"]</parameter></function></tool_call>',
    "seed": f'<seed:tool_call><function=f><parameter=a>["{HALF}"]</parameter></function></seed:tool_call>',
    "glm-4.5": f'<tool_call>f<arg_key>a</arg_key><arg_value>["{HALF}"]</arg_value></tool_call>',
    "minimax-m2": (
        f'<minimax:tool_call><invoke name="f"><parameter name="a">["{HALF}"]</parameter></invoke>'
        "</minimax:tool_call>"
    ),
    "llama-4": f'[f(a="{HALF}", b="\\ud800")]',
    "lfm-2": f'<|tool_call_start|>[f(a="{HALF}", b={{"\\ud801": 1}})]<|tool_call_end|>',
    "gemma-4": f'<|tool_call>call:f{{a:["{HALF}", "\\ud800"]}}<tool_call|>',
}


@pytest.mark.parametrize("name", HALVES)
def test_half_a_surrogate_pair_is_no_text_and_no_mark(name: str) -> None:
    """UTF-8 cannot write it, and a machine's own characters for special tokens are such halves."""
    special = [text for text in ("<|tool_call>", "<tool_call|>", '<|"|>') if name == "gemma-4"]
    special += ["<|python_start|>", "<|python_end|>"] if name == "llama-4" else []
    table = bound(name, special=special)
    text = table.spelled(HALVES[name])
    found = read(table, [text])
    assert found == read(table, list(text)) and len(found.calls) == 1
    ((call_id, called, arguments),) = found.calls
    assert called == "f" and (call_id + arguments).encode() and "<|" not in arguments


@pytest.mark.parametrize("name", ["hermes", "granite", "nemotron", "llama-3"])
def test_a_call_that_is_json_is_a_call_or_text(name: str) -> None:
    """Or one that says that it is cut; never half a call, with the rest as text, as if all were well."""
    opens = "" if name == "llama-3" else next(iter(TOOL_FORMATS[name].opens))
    for body, arguments in (
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"arguments": {"a": 1}, "type": "function", "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, "why": {"x": ["}"]}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', '{"a": 1, "a": 2}'),
    ):
        found = read(bound(name), list(opens + body))
        assert found.calls == [("id0", "f", arguments)] and found.complete == [True] and not found.text
    for body in (
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": nullify}',
        '{"name": "f", "why": "x", "arguments": {}}',
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "a b", "arguments": {}}',
        '{"name": "..", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
    ):
        found = read(bound(name), list(opens + body))
        assert found.calls == [] and found.text == opens + body
    for body in (
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": -Infinity}}',
        '{"name": "f", "arguments": {"a": 1]}',
        '{"name": "f", "arguments": "no JSON"}',
        '{"name": "f", "arguments": {}, "name": "g"}',
        '{"name": "f", "arguments": {}, "parameters": {"a": 1}}',
        '{"name": "f", "arguments": {"a": 1',
    ):
        found = read(bound(name), list(opens + body))
        assert [call[1] for call in found.calls] == ["f"] and found.complete == [False]


@pytest.mark.parametrize(
    "pairs", ['"Rome"', "1, 2", '**{"a": 1}', '"Rome", days=2', '"a=b"', "a=1, a=2", "a=", "a=1 b=2, c"]
)
def test_arguments_that_have_no_name_make_no_complete_call(pairs: str) -> None:
    for name, text in (
        ("llama-4", f"[f({pairs})]"),
        ("lfm-2", f"<|tool_call_start|>[f({pairs})]<|tool_call_end|>"),
    ):
        found = read(bound(name), [text])
        assert found.complete == [False] and json.loads(found.calls[0][2]) is not None
        assert read(bound(name), list(text)) == found


@pytest.mark.parametrize(
    ("pairs", "arguments"),
    [
        ('<|"|>city<|"|>:<|"|>Paris<|"|>', {"city": "Paris"}),
        ('city:New <|"|>York<|"|>', {"city": 'New <|"|>York<|"|>'}),
        ('city:[<|"|>a<|"|> b]', {"city": '[<|"|>a<|"|> b]'}),
        ('city:{<|"|>a<|"|>:<|"|><|tool_call><|"|>}', {"city": {"a": "<|tool_call>"}}),
    ],
)
def test_quotes_of_gemma_make_no_broken_json(pairs: str, arguments: dict[str, Any]) -> None:
    table = bound("gemma-4", special=("<|tool_call>", "<tool_call|>", '<|"|>'))
    text = table.spelled(f"<|tool_call>call:f{{{pairs}}}<tool_call|>")
    found = read(table, list(text))
    assert found.meaning == [("f", arguments)] and found.complete == [True]


@pytest.mark.parametrize("name", ["qwen3-coder", "seed"])
def test_a_closing_tag_that_is_forgotten_loses_nothing(name: str) -> None:
    before, _, after = NESTED[name]
    begin, rest = before.replace("opts", "city"), after.removeprefix("</function>")
    text = f"{begin}\nParis\n<parameter=days>\n3\n</function>{rest} So."
    found = read(bound(name), list(text))
    assert found.meaning == [("get_weather", {"city": "Paris", "days": 3})] and found.text == "So."
    assert found.complete == [True] and read(bound(name), [text]) == found


def test_a_parameter_that_comes_twice_makes_no_complete_call() -> None:
    def written(first: str, second: str) -> str:
        tags = "".join(f"<parameter=city>{value}</parameter>" for value in (first, second))
        return f"<tool_call><function=get_weather>{tags}</function></tool_call>"

    assert read(bound("qwen3-coder"), [written("Paris", "Rome")]).complete == [False]
    assert read(bound("qwen3-coder"), [written("Paris", "Paris")]).complete == [True]


def test_messages_of_harmony_to_no_tool_are_text() -> None:
    for recipient in ("user", "assistant", "functions.", "functions"):
        text = f"<|channel|>commentary to={recipient}<|message|>Hello.<|end|>"
        found = read(bound("harmony"), list(text))
        assert found.calls == [] and found.text == "Hello."
    for recipient in ("functions.user", "user_data", "browser.search"):
        found = read(bound("harmony"), [f"<|channel|>commentary to={recipient}<|message|>{{}}<|call|>"])
        assert found.calls == [("id0", recipient.removeprefix("functions."), "{}")]


def test_texts_around_a_call_and_around_reasoning_are_apart() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    table = bound("hermes", "think")
    for text, said, thought in (
        (f"I found 1 {call} 2 more", f"I found 1{BREAK}2 more", ""),
        (f"a{call}\n{call}b", f"a{BREAK}b", ""),
        (f"{call} b", "b", ""),
        ("<think>h</think>a<think>so</think> b", f"a{BREAK}b", "h\nso"),
    ):
        found = read(table, list(text))
        assert (found.text, found.reasoning) == (said, thought) and read(table, [text]) == found


@pytest.mark.parametrize("tools", ["cohere", None])
@pytest.mark.parametrize("mark", ["RESPONSE", "TEXT"])
@pytest.mark.parametrize("is_special", [True, False])
def test_marks_around_the_text_are_none_of_it(tools: str | None, mark: str, is_special: bool) -> None:
    """Also where the tokenizer does not call them special, so that they are in the decoded text."""
    opens, closes = f"<|START_{mark}|>", f"<|END_{mark}|>"
    table = bound(tools, "cohere", (opens, closes) if is_special else ())
    for thought in ("", "<|START_THINKING|>Hm.<|END_THINKING|>"):
        answer = f"{thought}{table.spelled(opens)}Rome <|START_ is big.{table.spelled(closes)}"
        found = read(table, [answer])
        assert (found.reasoning, found.text) == ("Hm." if thought else "", "Rome <|START_ is big.")
        assert read(table, list(answer)) == found


@pytest.mark.parametrize(
    ("name", "text", "calls", "said"),
    [
        (
            "mistral",
            'I will.[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}[TOOL_CALLS]multiply[ARGS]{"a": 3, "b": 6}',
            [("add", {"a": 3.5, "b": 4}), ("multiply", {"a": 3, "b": 6})],
            "I will.",
        ),
        ("mistral", 'It is "id.[TOOL_CALLS]f[ARGS]{"x": 1}', [("f", {"x": 1})], 'It is "id.'),
        (
            "nemotron",
            '<TOOLCALL>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 42}}]</TOOLCALL>',
            [("a", {}), ("b", {"x": 42})],
            "",
        ),
        (
            "cohere",
            'Hm.<|START_ACTION|>\n{"parameters": {"q": "rust"}, "tool_name": "search"}\n<|END_ACTION|>',
            [("search", {"q": "rust"})],
            "Hm.",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary"
            ' to=functions.f<|constrain|>1<|message|>{"x": 1}<|call|>',
            [("f", {"x": 1})],
            "",
        ),
        ("harmony", "<|channel|>final<|message|>Hi.<|constrain|><|return|>", [], "Hi.<|constrain|>"),
    ],
)
def test_what_other_parsers_lose(name: str, text: str, calls: list[tuple[str, Any]], said: str) -> None:
    """In one piece, and character by character (docs/reports.md)."""
    found = read(bound(name), [text])
    assert found.meaning == calls and all(found.complete) and found.text == said
    assert read(bound(name), list(text)) == found


def test_a_prompt_that_ends_within_the_reasoning() -> None:
    table = bound(None, "think")
    for prompt_end in ("<|assistant|><think>\n", "<think>\nFirst I look"):
        found = read(table, [" and so on</think>Yes."], prompt_end)
        assert (found.reasoning.strip(), found.text) == ("and so on", "Yes.")
    assert read(table, ["Yes."], "<think>\nhm</think>\nI say").text == "Yes."


def damaged(text: str, draw: random.Random) -> str:
    """A text with a few changes of the kind that models and attackers make."""
    for _ in range(draw.randrange(1, 4)):
        at, end = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        piece = draw.choice(
            [
                '"',
                "\\",
                "{",
                "}",
                "]",
                ",",
                "=",
                "'",
                "\n",
                "NaN",
                "null",
                '"name": "g", ',
                HALF,
                "<",
                ")",
                "1if",
            ]
        )
        text = draw.choice(
            [text[:at] + text[at + 9 :], text[:at] + piece + text[at:], text[:end] + text[at:], text[:end]]
        )
    return text


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_answers_are_read_alike_in_any_pieces(name: str) -> None:
    """Stream and whole: every cut. A complete call's arguments are JSON, and all of it is UTF-8."""
    draw, table = random.Random(name), bound(name, None if name == "harmony" else "think")
    for round in range(25):
        text = damaged(TRANSCRIPTS[name], draw)
        whole = read(table, [text])
        assert read(table, list(text)) == whole, text
        for cut in (
            range(len(text) + 1) if round < 2 else draw.sample(range(len(text) + 1), min(9, len(text)))
        ):
            assert read(table, [text[:cut], text[cut:]]) == whole, (text, cut)
        for (call_id, called, arguments), complete in zip(whole.calls, whole.complete, strict=True):
            assert (call_id + called + arguments).encode()
            assert not complete or isinstance(json.loads(arguments), dict)


_SPLIT = re.compile(r"(<[^>]*>|\[\w+\]|[{}\[\]\",=:])")
PARTS = st.sampled_from(sorted({part for text in TRANSCRIPTS.values() for part in _SPLIT.split(text)}))


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(FORMATS), parts=st.lists(PARTS | st.text(max_size=4), max_size=25), data=st.data()
)
def test_any_text_is_read_alike_in_any_pieces(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts).encode("utf-8", "replace").decode()
    table = bound(name, None if name == "harmony" else "think")
    whole = read(table, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(table, pieces) == whole
    assert read(table, list(text)) == whole
