"""Values that models write in the notation of Python."""

import ast

import pytest

from frontend.answers.values import MAX_LITERAL, literal

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
