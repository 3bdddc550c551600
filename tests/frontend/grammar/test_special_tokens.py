"""Texts that are tokens of their own."""

import pytest

from frontend.grammar.lark import SpecialTokens
from frontend.text.tokenizer import takes_part

SPECIAL = SpecialTokens({"<a>": 3, "<a><b>": 4, "[X]": 5, "<a b>": 6})


@pytest.mark.parametrize(
    ("text", "lark"),
    [
        ("", ""),
        ('x"y\n', '"x\\"y\\n"'),
        ("<a>", "<a>"),
        ("x<a>y", '"x" <a> "y"'),
        ("<a><b>", "<[4]>"),
        ("[X]é", '<[5]> "é"'),
        ("<a b>", "<[6]>"),
    ],
)
def test_tokens_are_named(text: str, lark: str) -> None:
    assert SPECIAL.in_lark(text) == lark


def test_where_they_are() -> None:
    assert SPECIAL.first_in("<a><b>x") == "<a><b>" and SPECIAL.first_in("x<a>") is None
    assert SPECIAL.occurs_in("x[X]") and not SPECIAL.occurs_in("x<b>")
    assert not SpecialTokens({}).occurs_in("<a>")


def test_which_added_tokens_no_text_matches() -> None:
    assert takes_part("[X]", True) and takes_part("<think>", False) and not takes_part("word", False)
