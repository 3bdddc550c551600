"""Stops as regular expressions against the plain definition: look at every prefix of the text."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontend.text.regex_automaton import MAX_HELD
from frontend.text.stop_strings import StopMatcher, StopStrings
from tests.frontend.text.test_stop_strings import cut_up

EXPRESSIONS = ("ab+", "(a|bé)b", "b.a", "(?s)b.*é", "(?m)^a", "^ab", "[^a]{3}", "a(b|é a)+ ", "(a b)+", "é")
texts = st.text(alphabet="abé \n", max_size=24)


def earliest(
    text: str, strings: list[str], regexes: list[str], armed_from: int
) -> tuple[str, int, int] | None:
    """(stop, start, end) of the match that completes first: strings before expressions, in their order."""
    for end in range(armed_from + 1, len(text) + 1):
        for stop in strings:
            if text[:end].endswith(stop):
                return stop, end - len(stop), end
        for source in regexes:
            pattern = re.compile(source)
            for start in range(end):
                if pattern.fullmatch(text, start, end):
                    return source, start, end
    return None


@settings(max_examples=300, deadline=None)
@given(
    text=texts,
    strings=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=2),
    regexes=st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    include=st.booleans(),
    border=st.integers(0, 30),
)
@example(text="aabbb", strings=[], regexes=["ab+"], cuts=[1, 2, 3], include=False, border=3)
@example(text="bb a", strings=["b a"], regexes=["b.a"], cuts=[1, 2, 3], include=False, border=0)
@example(text="b aaé", strings=["aé"], regexes=["(?s)b.*é"], cuts=[2], include=False, border=0)
def test_equals_the_definition_for_every_way_to_cut(text, strings, regexes, cuts, include, border):
    """Shown text and match are what the whole text says, however it arrives; early matches do not count."""
    matcher = StopMatcher(StopStrings(strings, include=include, regexes=regexes))
    border = min(border, len(text))
    expected = earliest(text, strings, regexes, border)
    shown, stop = matcher.push(text[:border], armed=False)
    assert stop is None
    for piece in cut_up(text[border:], cuts):
        out, stop = matcher.push(piece)
        shown += out
        if stop is not None:
            break
    if expected is None:
        assert stop is None and shown + matcher.flush() == text
    else:
        assert stop == expected[0] and matcher.by_regex == (stop not in strings)
        assert shown == text[: expected[2] if include else expected[1]]


def test_no_more_is_held_back_than_a_match_may_begin_with():
    matcher = StopMatcher(StopStrings([], include=False, regexes=[r"\n\s*(User|Human):"]))
    pieces = ["fine", ".\n", "  \n", "Us", "ing it", "\n\nHum", "an", ": x"]
    shown = [matcher.push(piece) for piece in pieces]
    assert shown == [
        ("fine", None),
        (".", None),
        ("", None),
        ("", None),
        ("\n  \nUsing it", None),
        ("", None),
        ("", None),
        ("", r"\n\s*(User|Human):"),
    ]


def test_a_match_longer_than_what_is_held_back():
    """What has been shown stays, and is the same however the text arrives."""
    stops = StopStrings([], include=False, regexes=["<.*>"])
    text = "x<" + "y" * (2 * MAX_HELD) + ">z"
    for size in (1, 7, len(text)):
        matcher, shown, stop = StopMatcher(stops), "", None
        for start in range(0, len(text), size):
            out, stop = matcher.push(text[start : start + size])
            shown += out
            if stop is not None:
                break
        assert (shown, stop) == (text[: text.index(">") - MAX_HELD], "<.*>")


def test_hostile_expressions_take_linear_time():
    """What makes a backtracking engine take exponential time. Computed states are counted, not the time."""
    stops = StopStrings([], include=False, regexes=["(x+x+)+y", "(a|a|ab)*c", "(.*)(.*)(.*)z"])
    matcher = StopMatcher(stops)
    assert matcher.push("x" * 3000)[1] is None and matcher.push("ab" * 3000)[1] is None
    assert stops.automaton is not None and stops.automaton._num_kept < 200
