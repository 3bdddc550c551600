"""What becomes a grammar, and what is refused: what is wrong, and where."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from llguidance import LLMatcher

from frontend.errors import InvalidRequest
from frontend.grammar.judge import GrammarJudge, byte_tokenizer
from pagewire.v1 import generation_pb2

SPECIAL = {"<|user|>": 4, "<tool_call>": 9, "[CALL]": 11}
Form = generation_pb2.StructuredOutput
LARK = Form.Grammar.SYNTAX_LARK
MANY_FIELDS = [
    {"type": "object", "properties": {f"k{field}_{place}": {"type": "string"} for field in range(30)}}
    for place in range(60)
]
"""Schemas of which each alone is small."""
ADD = {
    "triggers": ["<f="],
    "structures": [{"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"}],
}


def compiled(**form: Any) -> str:
    return GrammarJudge(SPECIAL).compile(Form(**form))


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is a complete output."""
    tokenizer = byte_tokenizer(list(SPECIAL))
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"json_object": True}, ["{}", '{"a":[1,null]}'], ["[]", '{"a":', "{} "]),
        ({"json_schema": '{"properties":{"a":{"type":"integer"}}}'}, ['{"a":7}'], ['{"a":"7"}']),
        ({"json_schema": "true"}, ["1", "[{}]"], ["nonsense"]),
        ({"regex": r"\d\W\w"}, ["7 a", "7éa"], ["٣ a", "🯸 a", "7 é"]),
        ({"regex": r"[\d-]+[^\d\W]"}, ["3-a", "--_"], ["٣a", "3-é", "3-3"]),
        ({"regex": r"\\d"}, [r"\d"], ["3"]),
        ({"grammar": {"text": r'start: /\d/ "/\\d/" A // \d/' + "\nA: /[\\w\\/]/i", "syntax": LARK}},
            ["3/\\d/k", "3/\\d//"], ["٣/\\d/k", "3/\\d/é"]),
        ({"json_schema": r'{"type": "string", "pattern": "^\\d\\w$"}'}, ['"3a"'], ['"٣a"', '"3é"']),
        ({"regex": "[0-9]+-é"}, ["12-é"], ["12-", "x12-é", "12-é\n"]),
        ({"choice": {"values": ["yes", 'a "b" \\', "été\n"]}}, ["yes", 'a "b" \\', "été\n"], ["ye", "no"]),
        ({"grammar": {"text": 'root ::= "a" x*\nx ::= [0-9]'}}, ["a", "a12"], ["", "b"]),
        ({"grammar": {"text": 'root ::= "a"', "syntax": Form.Grammar.SYNTAX_EBNF}}, ["a"], ["b"]),
        ({"grammar": {"text": 'start: "a" /[0-9]/', "syntax": LARK}}, ["a1"], ["a"]),
        ({"grammar": {"text": 'start: <|user|> "a"', "syntax": LARK}}, ["<|user|>a"], ["a"]),
        (
            {"structural_tag": json.dumps(ADD)},
            ["", "free text", "x <f=add>12</f> y <f=add>3</f>"],
            ["x <f=add>12", "<f=sub>1</f>", "<f=add>a</f>"],
        ),
        (
            {"structural_tag": json.dumps({**ADD, "triggers": ["<tool_call>"], "structures": [
                {"begin": "<tool_call>\n", "schema": {"enum": [1, 2]}, "end": "<|user|>"}]})},
            ["hi <tool_call>\n1<|user|> bye"],
            ["<tool_call>\n3<|user|>", "<tool_call>1<|user|>"],
        ),
    ],
)  # fmt: skip
def test_a_form_allows_what_it_says(form: Mapping[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = compiled(**form)
    for text in good:
        assert accepts(grammar, text), text
    for text in bad:
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("form", "field", "words"),
    [
        ({"json_schema": '{"a": }'}, "json_schema", ["not JSON", "line 1, column 7"]),
        ({"json_schema": "NaN"}, "json_schema", ["NaN"]),
        ({"json_schema": "[" * 100_000}, "json_schema", ["nested too deeply"]),
        ({"json_schema": '{"items":' * 200 + "{}" + "}" * 200}, "json_schema", ["recursion limit"]),
        ({"json_schema": '{"maximum": 1e999}'}, "json_schema", ["out of range"]),
        ({"json_schema": r'{"const": "\ud800"}'}, "json_schema", ["cannot be read", "column"]),
        ({"json_schema": "[]"}, "json_schema", ["neither an object"]),
        ({"json_schema": '{"type": "foo"}'}, "json_schema", ["foo"]),
        ({"json_schema": '{"$ref": "#/$defs/x"}'}, "json_schema", ["/$defs/x"]),
        ({"json_schema": '{"$ref": "https://example.org/a.json"}'}, "json_schema", ["example.org"]),
        ({"json_schema": '{"x-guidance": {"lenient": true}}'}, "json_schema", ["x-guidance"]),
        (
            {"json_schema": '{"properties": {"a": {"not": {"type": "string"}}}}'},
            "json_schema",
            ["not", "/properties/a"],
        ),
        ({"json_schema": '{"type":"string","minLength":5,"maxLength":2}'}, "json_schema", ["minLength"]),
        ({"json_schema": "false"}, "json_schema", ["false"]),
        ({"regex": "a(b"}, "regex", ["unclosed group", "character 2"]),
        ({"regex": r"\d\d(b"}, "regex", ["unclosed group", "character 5"]),
        ({"regex": "(?=a)b"}, "regex", ["look-ahead"]),
        ({"regex": r"[^\s\S]"}, "regex", ["matches nothing"]),
        ({"regex": "((a{1,1000}){1,1000}){1,1000}"}, "regex", ["repetitions multiply"]),
        ({"regex": r"x[0-9]?(a{1,300}){1,300}"}, "regex", ["repetitions multiply"]),
        ({"json_schema": '{"type":"string","pattern":"^(b{1,300}){1,300}$"}'}, "json_schema", ["multiply"]),
        ({"grammar": {"text": "start: /(a{1,300}){1,300}/", "syntax": LARK}}, "grammar.text", ["multiply"]),
        *(
            ({"grammar": {"text": text, "syntax": LARK}}, "grammar.text", ["multiply"])
            for text in (
                'start: b~1..1000\nb: c~1..1000\nc: "a"~1..1000',
                'start: s\ns: "a" | "b" | s s | s s s',
                'start: "b" <[5-7]> s\ns: "a" | s s | s s s',
                f'start: {" ".join(["a?"] * 3000)}\na: "x"',
            )
        ),
        ({"json_schema": json.dumps({"anyOf": MANY_FIELDS})}, "json_schema", ["multiply"]),
        ({"grammar": {"text": 'root ::= b{1,99}\nb ::= c{1,99}\nc ::= "a"{1,99}'}}, "grammar.text", ["mul"]),
        ({"grammar": {"text": 'root ::= ("x"'}}, "grammar.text", ["GBNF", "line 1"]),
        ({"grammar": {"text": 'other ::= "x"'}}, "grammar.text", ["root"]),
        ({"grammar": {"text": 'start: "a"\n  foo', "syntax": LARK}}, "grammar.text", ["line 2, column 6"]),
        ({"grammar": {"text": "start: /\\d/\n  foo", "syntax": LARK}}, "grammar.text", ["line 2, column 6"]),
        ({"grammar": {"text": 'start: start "a"', "syntax": LARK}}, "grammar.text", ["never ends"]),
        ({"grammar": {"text": "start: <|nosuch|>", "syntax": LARK}}, "grammar.text", ["<|nosuch|>"]),
        ({"structural_tag": "{"}, "structural_tag", ["not JSON"]),
        ({"structural_tag": "[]"}, "structural_tag", ["not an object"]),
        ({"structural_tag": json.dumps({**ADD, "format": 1})}, "structural_tag", ["'format'"]),
        ({"structural_tag": json.dumps({**ADD, "triggers": []})}, "structural_tag", ["triggers"]),
        ({"structural_tag": json.dumps({**ADD, "triggers": ["<g="]})}, "structural_tag", ["[0].begin"]),
        ({"structural_tag": json.dumps({**ADD, "structures": [
            {"begin": "<f=", "schema": {"const": "\ud800"}}]})}, "structural_tag", ["surrogate"]),
        (
            {"structural_tag": json.dumps({**ADD, "triggers": ["<f=", "<f=a"]})},
            "structural_tag",
            ["triggers[0]", "another trigger"],
        ),
        (
            {"structural_tag": json.dumps({**ADD, "structures": [{"begin": "<f=", "schema": {"not": {}}}]})},
            "structural_tag",
            ["not", "/structures/0/schema"],
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_field_and_place(form: Mapping[str, Any], field: str, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(**form)
    ((path, text),) = caught.value.violations.items()
    assert path == f"structured_output.{field}"
    assert all(word in text for word in words), text
    assert len(text) < 500 and "\n" not in text


def test_json_has_no_optional_whitespace() -> None:
    """A model could go on with spaces until max_tokens."""
    grammar = compiled(json_schema='{"type":"object","properties":{"a":{},"b":{}}}')
    assert accepts(grammar, '{"a":1,"b":[1,2]}')
    assert not accepts(grammar, '{"a": 1}') and not accepts(grammar, '{ "a":1}')


def test_large_grammars_are_judged_in_bounded_work() -> None:
    """Hostile forms: each is taken or refused, and the process's CPU limit is far away."""
    began = time.process_time()
    for form in (
        {"regex": "(a{1,1000}){1,1000}"},
        {"regex": "(.*a.{200}|.*b.{300})"},
        {"json_schema": json.dumps({"enum": [f"x{number}" for number in range(5000)]})},
        {"json_schema": '{"type":"array","minItems":1000000,"items":{"type":"integer"}}'},
        {"choice": {"values": [f"x{number}y" for number in range(4096)]}},
    ):
        try:
            compiled(**form)
        except InvalidRequest as refusal:
            assert refusal.violations
    assert time.process_time() - began < 60
