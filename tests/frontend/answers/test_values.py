"""Bare values, cast by the schema of their argument, and values in the notation of Python."""

import ast
from typing import Any

import pytest

from frontend.answers.tables import ValueStyle
from frontend.answers.values import (
    MAX_ENTRIES,
    MAX_LITERAL,
    is_object,
    literal,
    schemas_of,
    types_of,
    value_of,
)

NULL = {"type": "null"}
OPTIONAL = {"anyOf": [{"type": "string"}, NULL]}
CASTS: list[tuple[dict[str, Any], str, Any]] = [
    # A string stays one, whatever it looks like.
    *(({"type": "string"}, text, text) for text in ("5", "null", '"q"', " a ")),
    *((OPTIONAL, text, text) for text in ("00501", "5", "true", '{"a": 1}', "1,000")),
    *(({"type": ["string", "null"]}, text, text) for text in ("5", '["a"]', "None of it")),
    ({"allOf": [{"type": "string"}]}, "5", "5"),
    ({"oneOf": [{"type": "string"}, NULL]}, "5", "5"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": ["true", "false"]}, "true", "true"),
    ({"const": "5"}, "5", "5"),
    ({"format": "date"}, "2026", "2026"),
    ({"type": "string", "nullable": True}, "5", "5"),
    # Where a schema allows null, both of its names are null.
    *(
        (schema, text, None)
        for schema in (OPTIONAL, {"type": ["integer", "null"]})
        for text in ("null", "None")
    ),
    ({"type": "string", "nullable": True}, "null", None),
    ({"enum": ["a", None]}, "None", None),
    # JSON strings are decoded where other types are allowed too: enforced calls are JSON there.
    (OPTIONAL, '"5"', "5"),
    ({"enum": ["1", "2"]}, '"1"', "1"),
    # What has another type is cast where it fits, and else text.
    ({"anyOf": [{"type": "integer"}, NULL]}, "5", 5),
    ({"anyOf": [{"type": "boolean"}, NULL]}, "True", True),
    ({"anyOf": [{"type": "array"}, NULL]}, "[{'a': True}]", [{"a": True}]),
    ({"type": "boolean"}, "TRUE", True),
    ({"type": "boolean"}, "yes", "yes"),
    ({"type": "boolean"}, "1", "1"),
    ({"type": "integer"}, "1,000", "1,000"),
    ({"type": "integer"}, "3.5", "3.5"),
    ({"type": "integer"}, "3.0", 3.0),
    ({"type": "number"}, "3,14", "3,14"),
    ({"type": "number"}, "3", 3),
    ({"type": "number"}, "NaN", "NaN"),
    ({"enum": [1, 2]}, "2", 2),
    ({"const": 7}, "7", 7),
    ({"minimum": 0}, "7", 7),
    ({"type": "object"}, "{'a': None}", {"a": None}),
    ({"type": "array"}, "1, 2", [1, 2]),
    ({"properties": {}}, "{'a': 1}", {"a": 1}),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
    ({"anyOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}),
    # Of unknown schemas: JSON, or text.
    ({}, "5", 5),
    ({}, "True", "True"),
    ({}, "['a']", "['a']"),
    ({}, '["\\ud83d"]', ["\ufffd"]),
]


@pytest.mark.parametrize(("schema", "text", "value"), CASTS)
def test_a_value_is_what_fits_the_schema(schema: dict[str, Any], text: str, value: Any) -> None:
    found = value_of(text, ValueStyle.BY_SCHEMA, schema)
    assert (found, type(found)) == (value, type(value))


def test_schemas_are_looked_up() -> None:
    """Through references, with escapes and circles, and wherever a tool's schema names arguments."""
    parameters = {
        "$defs": {
            "a/b~": {"type": "string"},
            "loop": {"$ref": "#/$defs/loop"},
            "more": {"properties": {"z": {"$ref": "#/$defs/a~1b~0"}}},
        },
        "properties": {
            "x": {"$ref": "#/$defs/a~1b~0", "description": "d"},
            "y": {"anyOf": [{"$ref": "#/$defs/a~1b~0"}, NULL]},
            "loop": {"$ref": "#/$defs/loop"},
            "missing": {"$ref": "#/$defs/none"},
            "elsewhere": {"$ref": "https://example.com"},
            "odd": {"anyOf": 3, "type": 7, "enum": "x"},
        },
        "allOf": [{"$ref": "#/$defs/more"}],
    }
    found = {name: types_of(schema) for name, schema in schemas_of({"f": parameters})["f"].items()}
    assert found.pop("x") == found.pop("z") == {"string"} and found.pop("y") == {"string", "null"}
    assert set(found) == {"loop", "missing", "elsewhere", "odd"} and set(map(len, found.values())) == {7}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/properties/y", "allOf": 5},
        {"type": {"a": 1}},
        {"type": [["string"]]},
        {"enum": 3, "anyOf": [7], "const": {}},
    ],
)
def test_schemas_that_are_none_allow_anything_or_less(schema: dict[str, Any]) -> None:
    found = schemas_of({"f": {"properties": {"x": schema, "y": {}}}})["f"]["x"]
    assert value_of("5", ValueStyle.BY_SCHEMA, found) in (5, "5")


def test_an_integer_that_cannot_be_written_stays_text() -> None:
    text = "0x" + 4000 * "f"
    assert value_of(text, ValueStyle.BY_SCHEMA, {"type": "integer"}) == text
    assert value_of("0xff", ValueStyle.BY_SCHEMA, {"type": "integer"}) == 255


def entries(value: object) -> int:
    """Counts what a schema holds, shared parts as often as they are reached."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(entries, parts))


@pytest.mark.parametrize(
    "a",
    [
        {"anyOf": [{"$ref": "#/$defs/a"}] * 100},
        {"oneOf": [{"$ref": "#/$defs/a"}] * 30, "enum": ["x"] * 3000},
        {"allOf": [{"$ref": "#/$defs/a"}] * 30, "properties": {str(i): {} for i in range(3000)}},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 30, **{str(i): i for i in range(3000)}},
    ],
)
def test_references_that_multiply_are_bounded(a: dict[str, Any]) -> None:
    """100 references to what has 100 of them were a hundred million schemas, from three kilobytes."""
    tool = {"$defs": {"a": a}, "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"type": "integer"}}, **a}
    found = schemas_of({"f": tool, "g": tool})
    assert entries(found) < 3 * MAX_ENTRIES
    small = {"properties": {"y": {"type": "integer"}}}
    assert types_of(schemas_of({"small": small, "f": tool})["small"]["y"]) == {"integer"}


@pytest.mark.parametrize("text", ["{}", '{"a": [1]}', '{"a": 1, "a": 2}'])
def test_arguments_are_an_object(text: str) -> None:
    assert is_object(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"a": NaN}', '{"a": -Infinity}', "{'a': 1}", '{"a":' * 9999]
)
def test_what_are_no_arguments(text: str) -> None:
    assert not is_object(text)


SAME_AS_PYTHON = (
    "'a'",
    '"it\'s"',
    "'say \"hi\"'",
    "{'x': [1, 'two'], 'ok': True, 'none': None, \"é\": 'True'}",
    "'None, True'",
    "'one' 'two'",
    "r'a'",
    "(1, 'b')",
    "-2.5",
    "0x1f",
    "[1, 2,]",
    r"'a\x41\n\'b'",
)


@pytest.mark.parametrize("text", SAME_AS_PYTHON)
def test_a_literal_is_what_python_reads(text: str) -> None:
    expected = ast.literal_eval(text)
    assert literal(f" {text} ") == (list(expected) if isinstance(expected, tuple) else expected)


def test_what_json_writes_is_known_too() -> None:
    assert literal("[true, 'true', false, null]") == [True, "true", False, None]


@pytest.mark.parametrize("text", ["{1: 2}", "f(1)", "b'x'", "'a", "nan", "[None_x]", "{1, 2}", "'a' + 'b'"])
def test_what_is_no_literal(text: str) -> None:
    with pytest.raises(ValueError):
        literal(text)


def test_a_long_string_is_read_whole() -> None:
    long = "x" * (2 * MAX_LITERAL)
    assert literal(f"'{long}'") == long
    with pytest.raises(ValueError, match="too long"):
        literal(f"('{long}',)")
