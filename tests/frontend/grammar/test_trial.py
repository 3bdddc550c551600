"""Grammars whose outputs would fail while they are written are found before."""

import pytest
from llguidance import LLMatcher, LLParserLimits

from frontend.grammar.judge import byte_tokenizer
from frontend.grammar.trial import TOO_MUCH, repeats_much, trial_problem
from pagewire.grammar_limits import PARSER_LIMITS

TOKENIZER = byte_tokenizer([])


def problem(regex: str) -> str:
    grammar = LLMatcher.grammar_from_regex(regex)
    assert repeats_much(grammar)
    limits = LLParserLimits(**PARSER_LIMITS)
    return trial_problem(LLMatcher(TOKENIZER, grammar, log_level=0, limits=limits))


@pytest.mark.parametrize("regex", [r"(a{1,100}){1,100}", r"b|(z{1,100}){1,100}", r"(\w{1,20}[ ,.]?){1,200}"])
def test_repetitions_that_multiply(regex: str):
    assert problem(regex) == TOO_MUCH


@pytest.mark.parametrize(
    "regex",
    [
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        r"[a-z]{1,64}@[a-z]{1,63}(\.[a-z]{2,63}){1,8}",
        r"(\w{1,20}[ ,.]){1,200}",
        r".{1,2000}\n.{1,2000}",
    ],
)
def test_repetitions_that_stand_apart(regex: str):
    assert problem(regex) == ""


@pytest.mark.parametrize("regex", ["a{1,1000}", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "{}", "a{3,}b{2,}"])
def test_few_repetitions_are_not_tried(regex: str):
    assert not repeats_much(regex)
