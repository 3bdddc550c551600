"""Stop strings against the plain definition: look at every prefix of the text."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontend.text.stop_strings import StopMatcher, StopStrings


def earliest(text: str, stops: list[str], armed_from: int = 0) -> tuple[str, int, int] | None:
    """(stop string, start, end) of the match that completes first; of several, the first of the list.

    armed_from: a match that completes before this many characters does not count.
    """
    for end in range(armed_from + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return stop, end - len(stop), end
    return None


def undecided(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


def cut_up(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]


texts = st.text(alphabet="abé ", max_size=40)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=5), min_size=1, max_size=9)


@settings(max_examples=400, deadline=None)
@given(text=texts, stops=stop_lists, cuts=st.lists(st.integers(0, 1000), max_size=12), include=st.booleans())
@example(text="aab", stops=["ab", "b"], cuts=[1, 2], include=False)
@example(text="aaaab", stops=["aaab"], cuts=[1, 2, 3, 4], include=False)
def test_equals_the_definition_for_every_way_to_cut(text, stops, cuts, include):
    """Shown text, hold-back and match are what the whole text says, however it arrives."""
    matcher = StopMatcher(StopStrings(stops, include=include))
    expected = earliest(text, stops)
    shown, seen = "", ""
    for piece in cut_up(text, cuts):
        out, stop = matcher.push(piece)
        shown += out
        seen += piece
        if stop is not None:
            assert expected is not None and stop == expected[0]
            assert shown == text[: expected[2] if include else expected[1]]
            return
        assert shown == seen[: len(seen) - undecided(seen, stops)]
    assert expected is None
    assert shown + matcher.flush() == text


@settings(max_examples=300, deadline=None)
@given(text=texts, stops=stop_lists, border=st.integers(0, 40))
def test_matches_that_complete_too_early_do_not_count(text, stops, border):
    """min_tokens: a match may begin before the border, but must end after it."""
    matcher = StopMatcher(StopStrings(stops, include=False))
    border = min(border, len(text))
    expected = earliest(text, stops, border)
    out, stop = matcher.push(text[:border], armed=False)
    assert stop is None
    for character in text[border:]:
        piece, stop = matcher.push(character)
        out += piece
        if stop is not None:
            break
    if expected is None:
        assert stop is None and out + matcher.flush() == text
    else:
        assert stop == expected[0] and out == text[: expected[1]]


def test_a_match_across_many_pieces():
    matcher = StopMatcher(StopStrings(["\n\nUser:"], include=False))
    pieces = ["fine", ".\n", "\n", "Us", "er"]
    assert [matcher.push(piece) for piece in pieces] == [
        ("fine", None),
        (".", None),
        ("", None),
        ("", None),
        ("", None),
    ]
    assert matcher.push(": hello") == ("", "\n\nUser:")


def test_near_matches_take_linear_time():
    """S14: 100,000 characters of what nearly matches. The number of steps is counted, not the time."""
    stops = StopStrings(["a" * 500 + "b"], include=False)
    matcher = StopMatcher(stops)
    for _ in range(100):
        matcher.push("a" * 1000)
    assert 100_000 <= stops.prefixes.num_steps <= 200_000


def test_many_long_strings_cost_what_one_costs():
    """A text that begins all of 64 stop strings once took a step of each of them for each character."""
    stops = StopStrings(["ab" * 500 + chr(1000 + place) for place in range(64)], include=False)
    matcher = StopMatcher(stops)
    for _ in range(100):
        assert matcher.push("ab" * 100 + "a")[1] is None
    assert stops.prefixes.num_steps <= 2 * 100 * 201
    assert matcher.push("b" + "ab" * 499 + chr(1063)) == ("ab" * 100, stops.strings[63])


SILENT = {7: "<|user|>", 8: "<|end|>", 9: "</s>", 10: "[SEP]"}


@pytest.mark.parametrize(
    ("stops", "regexes", "pieces", "shown", "stop"),
    [
        (["<|user|>"], [], ["a", 7], "a", "<|user|>"),
        (["\n<|user|>", "<|user|>"], [], ["a\n", 7], "a", "\n<|user|>"),
        (["\n<|user|>"], [], ["a", 7, "b"], "ab", None),
        (["<|user|>b"], [], ["a", 7, "b"], "a", "<|user|>b"),
        (["<|end|><|user|>"], [], ["a", 8, 8, 7], "a", "<|end|><|user|>"),
        (["x"], [], ["a", 7, "bx"], "ab", "x"),
        (["x<|end|>"], [], ["a", 8, "b", "x", 8], "ab", "x<|end|>"),
        (["<|user|>"], [], ["a<|user|>"], "a", "<|user|>"),
        (["<|end|><|user|>"], [], ["a<|end|>", "<|us", "er|>"], "a", "<|end|><|user|>"),
        (["b", "</s>"], [], ["a <", "/", "s> more"], "a ", "</s>"),
        ([], [r"\n*<\|user\|>"], ["a\n\n", 7], "a", r"\n*<\|user\|>"),
        ([], ["</s>|x"], ["a", 9], "a", "</s>|x"),
        ([], ["</s>|x"], ["a</", "s>"], "a", "</s>|x"),
        ([], [r"\[SEP\]+"], ["a", 10], "a", r"\[SEP\]+"),
        ([], ["[SEP]"], ["a", 10, "bE"], "ab", "[SEP]"),
        ([], [r"[<\|end\|>]d"], ["a", 8, "d|d"], "ad", r"[<\|end\|>]d"),
    ],
)
def test_a_special_token_among_the_stops_is_followed_by_its_id(stops, regexes, pieces, shown, stop):
    """It has no text in the output. Letters that spell it match too: models write them where they have not
    learned the token."""
    matcher = StopMatcher(StopStrings(stops, include=False, regexes=regexes, silent=SILENT))
    text = ""
    for piece in pieces:
        new, found = matcher.push(piece if isinstance(piece, str) else matcher.mark(piece))
        text += new
    assert (text + ("" if found else matcher.flush()), found) == (shown, stop)
