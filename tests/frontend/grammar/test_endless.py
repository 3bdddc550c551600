"""Recursion without a way out is named; any other grammar passes."""

import json

import pytest
from llguidance import LLMatcher

from frontend.errors import InvalidRequest
from frontend.grammar.answer import AnswerJudge
from frontend.grammar.endless import endless_part
from frontend.grammar.notation import json_grammar
from pagewire.internal.v1 import reader_pb2
from pagewire.v1.generation_pb2 import StructuredOutput
from tests.frontend.grammar.calls.random_answers import RandomModel

ENDLESS = {
    'start: "a" start': 'the rule "start"',
    'start: a | "b"\na: "x" a': 'the rule "a"',  # an output that begins with x is caught in it
    'start: a?\na: "x" a b\nb: "c"': 'the rule "a"',
    'start: a{0,3}\na: "x" a': 'the rule "a"',
    'start: [a] "b"\na: "x" a': 'the rule "a"',
    "start: a~2..3\na: ( a | a a )": 'the rule "a"',
    'start: b // of two\n  | "c" d\nb: "x"\n  | "y" b\nd: b d': 'the rule "d"',
    'start: "(" x+ ")"\nx: y\ny[capture]: "a" x z\nz: y z': 'the rule "z"',
    'start: %json {"$ref": "#"}': 'the $ref "#"',
}
FINITE = [
    'start: "a" start |',
    'start: "a" start?',
    'start: "a" start* "b"',
    'start: "a" [start]',
    'start: "a" start{0,2}',
    'start: "a" start~0..2',
    'start: "b"\na: "x" a',  # never reached
    'start: a "," b\na[capture, stop="]"]: /]*/ | a "b"\nb: <|end|> | "c".."d" | b b\n%ignore /[ :]+/',
    "start: a\na: b\nb: c\nc: a | d\nd: (T | d)+\nT: U U\nU: /x/",
    '%llguidance {"no_forcing": true}\n?start.2: "a:b" /c:d/i start | T\nT: "t"i',
    "start: x -> y",
]
OBJECT = {"type": "object", "required": ["next"]}
IN_ITSELF = {"properties": {"next": {"$ref": "#/$defs/b~1c"}}, **OBJECT}
NEXT = {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize("grammar", ENDLESS)
def test_recursion_without_a_way_out(grammar: str) -> None:
    assert endless_part(grammar) == ENDLESS[grammar]


@pytest.mark.parametrize("grammar", FINITE)
def test_a_rule_that_may_end(grammar: str) -> None:
    assert endless_part(grammar) == ""


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", **NEXT}, "#"),
        ({"properties": {"a": {"$ref": "#/$defs/b~1c"}}, "$defs": {"b/c": IN_ITSELF}}, "#/$defs/b~1c"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "#"),
        ({"anyOf": [{"$ref": "#"}, {"type": "object", **NEXT}]}, "#"),
        ({"allOf": [{"type": "object"}, {"$ref": "#"}]}, "#"),
        ({"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}, "#"),
    ],
)
def test_a_schema_whose_values_never_end(schema: dict[str, object], named: str) -> None:
    assert endless_part(json_grammar(json.dumps(schema))) == f'the $ref "{named}"'


@pytest.mark.parametrize(
    "schema",
    [
        NEXT,  # anything but an object has no members
        {"type": ["object", "null"], **NEXT},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, **OBJECT},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1},
        {"type": "object", "properties": {"a": {"const": {"$ref": "#"}}}, "required": ["a"]},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.org/schema"},
        {"type": "string"},
    ],
)
def test_a_schema_with_values_that_end(schema: dict[str, object]) -> None:
    grammar = json.dumps({"grammars": [{"json_schema": schema}]})
    assert endless_part(grammar) == ""


def test_what_is_named_is_what_cannot_be_finished() -> None:
    """llguidance takes most of them, and stops an output of them with an error."""
    for grammar in ENDLESS:
        assert not LLMatcher.validate_grammar(grammar), grammar


def test_the_field_is_named_in_the_words_of_its_syntax() -> None:
    form = reader_pb2.AnswerForm()
    form.structured_output.grammar.text = 'root ::= "a" root'
    form.structured_output.grammar.syntax = StructuredOutput.Grammar.SYNTAX_EBNF
    with pytest.raises(InvalidRequest) as refused:
        AnswerJudge({}, None, None).compile(form)
    assert refused.value.violations == {
        "structured_output.grammar.text": 'the rule "root" never ends: each alternative leads to it again'
    }


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "llama-4", "mistral"])
def test_a_tool_whose_arguments_never_end_is_refused(name: str) -> None:
    """Some formats have the schema as it is, others a rule for each argument."""
    form = reader_pb2.AnswerForm(calls_required=True)
    form.tools.add(name="f", parameters=json.dumps({"type": "object", **NEXT}))
    with pytest.raises(InvalidRequest, match=r"tools\[0\].parameters: .* never ends"):
        RandomModel(name).judge.compile(form)
