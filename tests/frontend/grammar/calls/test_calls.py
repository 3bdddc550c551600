"""Calls under the grammar of each format: what random weights write is read as calls that fit the schemas."""

import json
import random
from typing import Any

import jsonschema
import pytest

from frontend.answers.formats import TOOL_FORMATS
from frontend.errors import InvalidRequest
from pagewire.internal.v1 import reader_pb2
from tests.frontend.grammar.calls.random_answers import RandomModel

FORMATS = sorted(TOOL_FORMATS)
SCHEMAS: dict[str, dict[str, Any]] = {
    "book-room": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$", "description": "of the hotel"},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "kind": {"type": "string", "enum": ["single", "double"]},
            "quiet": {"type": "boolean"},
            "rates": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
            "guest": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 9},
                    "age": {"type": ["integer", "null"]},
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "required": ["code", "days", "guest"],
        "additionalProperties": False,
    },
    "assistant.now": {"type": "object", "properties": {}},
}
NUM_ANSWERS = 3


def form(*, required: bool = True, single: bool = False, only: str = "") -> reader_pb2.AnswerForm:
    made = reader_pb2.AnswerForm(calls_required=required, single_call=single)
    for place, (name, schema) in enumerate(SCHEMAS.items()):
        if only in ("", name):
            made.tools.add(name=name, parameters=json.dumps(schema), place=place)
    return made


def check(calls: list[tuple[str, str, str]]) -> None:
    for _, name, arguments in calls:
        jsonschema.validate(json.loads(arguments), {**SCHEMAS[name], "additionalProperties": False})


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_are_valid(name: str, special: bool) -> None:
    model, dice = RandomModel(name, special), random.Random(name)
    grammar = model.grammar(form())
    answers = [model.answer(grammar, dice) for _ in range(NUM_ANSWERS)]
    for tokens in filter(None, answers):
        read = model.read(tokens)
        assert read.calls and all(read.complete) and not read.text.strip(), model.text(tokens)
        check(read.calls)
    assert any(answers)


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_call_is_one_call(name: str) -> None:
    model, dice = RandomModel(name), random.Random(name)
    grammar = model.grammar(form(single=True, only="assistant.now"))
    tokens = model.answer(grammar, dice)
    assert tokens is not None
    assert model.read(tokens).meaning == [("assistant.now", {})]


@pytest.mark.parametrize("name", FORMATS)
def test_text_has_no_other_calls_than_valid_ones(name: str) -> None:
    """`auto` with strict tools."""
    model, dice = RandomModel(name, special=name != "function-tag"), random.Random(name)
    grammar = model.grammar(form(required=False))
    answers = [model.answer(grammar, dice, most=1500) for _ in range(2 * NUM_ANSWERS)]
    reads = [model.read(tokens) for tokens in answers if tokens is not None]
    for read in reads:
        assert all(read.complete)
        check(read.calls)
    assert reads


@pytest.mark.parametrize("name", FORMATS)
def test_tools_that_are_not_strict_take_any_object(name: str) -> None:
    model, dice = RandomModel(name), random.Random(name)
    free = reader_pb2.AnswerForm(calls_required=True, single_call=True)
    free.tools.add(name="f")
    answers = [model.answer(model.grammar(free), dice) for _ in range(NUM_ANSWERS)]
    reads = [model.read(tokens) for tokens in answers if tokens is not None]
    assert reads and all(read.complete == [True] and read.calls[0][1] == "f" for read in reads)


@pytest.mark.parametrize(
    ("name", "schema", "problem"),
    [
        ("hermes", {"type": "array"}, 'must have the type "object"'),
        ("hermes", {"properties": {"a": {"not": {}}}}, "uses not, not supported at /properties/a"),
        ("hermes", {"properties": {"a": {"$ref": "#/$defs/b"}}}, "b"),
        ("qwen3-coder", {"anyOf": [{}]}, "uses anyOf, which cannot be enforced"),
        ("qwen3-coder", {"properties": {"a": {"type": "string", "format": "date"}}}, "uses format"),
        ("qwen3-coder", {"properties": {"a b": {}}}, "has a property 'a b'"),
        ("glm-4.5", {"required": ["a"]}, "requires 'a', which is none of its properties"),
        ("gemma-4", {"properties": {"a": {"$ref": "#/$defs/b"}}}, "uses $ref"),
        ("qwen3-coder", {"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "put them in"),
        ("qwen3-coder", {"properties": {"a": {"type": "string", "pattern": "a$b"}}}, "anchors inside"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_tool(name: str, schema: Any, problem: str) -> None:
    asked = form()
    asked.tools.add(name="bad", parameters=json.dumps(schema), place=2)
    with pytest.raises(InvalidRequest) as refusal:
        RandomModel(name).grammar(asked)
    ((path, said),) = refusal.value.violations.items()
    assert path == "prompt.chat.tools[2].parameters" and problem in said


@pytest.mark.parametrize("name", ["qwen3-coder", "glm-4.5", "minimax-m2", "gemma-4"])
def test_a_bare_string_cannot_contain_the_mark_behind_it(name: str) -> None:
    """Also where the mark is text: what was written before it would be the value, and the rest no call."""
    model = RandomModel(name, special=False)
    one = reader_pb2.AnswerForm(calls_required=True, single_call=True)
    one.tools.add(name="f", parameters='{"properties":{"a":{"type":"string"}},"required":["a"]}')
    grammar, mark = model.grammar(one), _MARKS[name]
    for value, fits in (("x < y </para", True), (f"x{mark}y", False)):
        matcher = model.matcher(grammar)
        text = _WHOLE[name].format(value)
        assert (matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()) == fits, text
        if fits:
            assert model.read(list(text.encode())).meaning == [("f", {"a": value})]


_MARKS = {
    "qwen3-coder": "</parameter>",
    "glm-4.5": "</arg_value>",
    "minimax-m2": "</parameter>",
    "gemma-4": '<|"|>',
}
_WHOLE = {
    "qwen3-coder": ("<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"),
    "glm-4.5": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{}</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "gemma-4": '<|tool_call>call:f{{a:<|"|>{}<|"|>}}<tool_call|>',
}
