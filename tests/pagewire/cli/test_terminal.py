"""Tables and durations for terminals."""

import pytest

from pagewire.cli.terminal import aligned, short_seconds, shortened


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (0.5, "0.50 s"),
        (12.34, "12.3 s"),
        (245, "4:05 min"),
        (9000, "2.5 h"),
    ],
)
def test_durations(seconds: float, text: str):
    assert short_seconds(seconds) == text


def test_columns():
    assert aligned([("a", "bb", "1"), ("ccc", "d", "22")], left=2) == ["a    bb   1", "ccc  d   22"]


def test_long_and_hostile_text():
    assert shortened("abcdef", 4) == "abc…" and shortened("abcd", 4) == "abcd"
    assert shortened("a\x1b[2J\nb", 20) == "a?[2J?b"
