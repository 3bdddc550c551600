"""Grammars whose outputs would fail while they are written are found before."""

import pytest
from llguidance import LLMatcher

from frontend.grammar.judge import TOO_MUCH, byte_tokenizer, repeats_much, trial_problem

TOKENIZER = byte_tokenizer([])


def problem(regex: str) -> str:
    grammar = LLMatcher.grammar_from_regex(regex)
    assert repeats_much(grammar)
    return trial_problem(TOKENIZER, grammar)


@pytest.mark.parametrize(
    "regex",
    [
        r"(a{1,100}){1,100}",
        r"b|(z{1,100}){1,100}",
        r"(\w{1,20}[ ,.]?){1,200}",
        r"(a{1,1000}){1,10}",  # fails behind 660 bytes, more than are tried
        r"(a{1,5000}){1,3}",  # behind 3,029
    ],
)
def test_repetitions_that_multiply(regex: str):
    assert problem(regex) == TOO_MUCH


@pytest.mark.parametrize(
    "regex",
    [
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        r"[a-z]{1,64}@[a-z]{1,63}(\.[a-z]{2,63}){1,8}",
        r"(\w{1,20}[ ,.]){1,200}",
        r".{1,2000}\n.{1,2000}",
        r"(https?://[\w.-]{1,60}/[\w/.-]{0,100} ){1,10}",
        r"(-? ?\w{1,50}\n){1,100}",
    ],
)
def test_repetitions_that_stand_apart(regex: str):
    assert problem(regex) == ""


@pytest.mark.parametrize("regex", ["a{1,1000}", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "{}", "a{3,}b{2,}"])
def test_few_repetitions_have_all_fuel(regex: str):
    assert not repeats_much(regex)
