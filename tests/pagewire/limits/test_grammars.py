"""Limits of grammars: the library knows each of them, and holds to it."""

import pytest

from pagewire.limits import (
    MAX_CHOICES,
    MAX_COMPILED_BYTES,
    MAX_GRAMMAR_BYTES,
    PARSER_LIMITS,
)

llguidance = pytest.importorskip("llguidance")


def test_the_library_takes_each_limit():
    """By its name, with the value that is meant."""
    limits = llguidance.LLParserLimits(**PARSER_LIMITS)
    for name, value in PARSER_LIMITS.items():
        assert getattr(limits, name) == value
    with pytest.raises(TypeError):
        llguidance.LLParserLimits(**PARSER_LIMITS, no_such_limit=1)


def test_limits_are_lower_than_those_of_the_library():
    """Otherwise they would bound nothing."""
    own, default = llguidance.LLParserLimits(**PARSER_LIMITS), llguidance.LLParserLimits()
    for name in PARSER_LIMITS:
        assert getattr(own, name) <= getattr(default, name), name


def test_a_grammar_that_is_allowed_has_room_when_it_is_compiled():
    """As many choices as there may be, in as many bytes, quoted and escaped as JSON."""
    assert MAX_COMPILED_BYTES >= 6 * MAX_GRAMMAR_BYTES + 4 * MAX_CHOICES
