"""Regular expressions of stops: what is accepted means what it means to Python's re, the rest is
refused by name."""

import random
import re

import pytest

from frontend.text.regex_automaton import MAX_KEPT, MAX_NODES, Automaton, RegexMatcher
from frontend.text.regex_syntax import RegexError

SUPPORTED = (
    "abc",
    "a.c",
    "(?s)a.c",
    "[^a-c\\d]x",
    "[]a]b",
    "[^]a]b",
    "[a\\-\\]]+!",
    "\\w+\\s\\S\\D\\W",
    "\\x41\\u00e9",
    "\\.\\*\\\\\\n",
    "(?i)stra(ss|ß)e",
    "a(?i:bc)d",
    "a{2}b{1,3}c{2,}d{0,1}",
    "(a|bb|)(c|d?)e",
    "(?P<name>a)(?<other>b)(?:c)",
    "((a|b)*c)+?d*?e??f",
    "^ab",
    "(?m)^ab|c",
    "abc|bc|(a|b)c+",
    "{",
)
ALPHABET = "abcdeABC éßs!.*\\\n-]19x_{,2}"


def ends(source: str, text: str) -> list[tuple[int, int]]:
    """(end, start) of the matches that end at each place, the longest of them."""
    pattern = re.compile(source.replace("(?<", "(?P<"))
    found = []
    for end in range(1, len(text) + 1):
        starts = [start for start in range(end) if pattern.fullmatch(text, start, end)]
        found += [(end, starts[0])] if starts else []
    return found


def found_by(automaton: Automaton, text: str) -> list[tuple[int, int]]:
    matcher, found = RegexMatcher(automaton), []
    for end, character in enumerate(text, 1):
        if match := matcher.push(character):
            found.append((end, end - match[1]))
    return found


@pytest.mark.parametrize("source", SUPPORTED)
def test_means_what_python_means(source: str) -> None:
    """All ends of matches, and where the longest of each begins, in texts that nearly match."""
    automaton, draw = Automaton([source]), random.Random(source)
    pieces = [
        "ab",
        "abc",
        "AbC",
        "é",
        "Aé",
        "\n",
        "aabbccc",
        "Straße",
        "STRASSE",
        "1 !",
        "a]!",
        ".*\\\n",
        "c d",
    ]
    for _ in range(60):
        size = draw.randrange(1, 7)
        text = "".join(draw.choice([draw.choice(pieces), draw.choice(ALPHABET)]) for _ in range(size))
        assert found_by(automaton, text) == ends(source, text), text


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("ab$", "'$' is not supported: a stop is decided by the text up to it, at character 3"),
        ("a\\b", "'\\b' is not supported: a stop is decided by the text up to it, at character 2"),
        ("a(?=b)", "'(?=' is not supported at character 2"),
        ("(?<!a)b", "'(?<' is not supported at character 1"),
        ("(a)\\1", "'\\1' is not supported at character 4"),
        ("\\p{L}", "'\\p' is not supported at character 1"),
        ("a(?i)b", "'(?i)' must stand at the beginning at character 2"),
        ("a*+b", "a repetition is repeated at character 3"),
        ("+a", "'+' repeats nothing at character 1"),
        ("a{3,2}", "'{3,2}' must count up, to at most 1000, at character 2"),
        ("a{1001}", "'{1001}' must count up, to at most 1000, at character 2"),
        ("a{,2}", "'{,' names no least number at character 2"),
        ("(a", "a group is not closed at character 1"),
        ("a)", "')' closes no group at character 2"),
        ("[a", "a class is not closed at character 1"),
        ("[z-a]", "a class is not valid (bad character range z-a) at character 1"),
        ("[[:alpha:]]", "'[' in a class must be escaped at character 2"),
        ("a\\", "nothing follows '\\' at character 2"),
        ("\\x4", "'\\x' needs 2 hexadecimal digits at character 1"),
        ("(" * 40 + "a" + ")" * 40, "more than 32 groups within one another at character 34"),
        ("a?", "matches the empty text"),
        ("(?m)^", "matches the empty text"),
    ],
)
def test_refusals_say_what_and_where(source: str, problem: str) -> None:
    with pytest.raises(RegexError) as caught:
        Automaton(["x", source])
    assert (str(caught.value), caught.value.index) == (problem, 1)


@pytest.mark.parametrize("source", ["(a{30}){30}", "((((){1000}){1000}){1000}){1000}a", "a{513}"])
def test_the_size_is_bounded(source: str) -> None:
    """However it is written: also where what is repeated is empty."""
    with pytest.raises(RegexError, match=f"more than {MAX_NODES} states"):
        Automaton([source])


def test_what_is_kept_is_bounded() -> None:
    """Expressions made to have many states, in text made to reach them: results stay right."""
    source = "(a|b)*a(a|b){11}c"
    automaton = Automaton([source, "(?s)\u4e00.{3}\u4e01"])
    text = "".join("ab"[(place * place >> 3) % 2] for place in range(6000)) + "c"
    assert found_by(automaton, text) == [(6001, 0)]
    for place in range(MAX_KEPT):
        automaton.step(automaton.start, chr(0x4E00 + place))
    assert automaton._num_kept <= MAX_KEPT
    assert found_by(automaton, text) == [(6001, 0)]
