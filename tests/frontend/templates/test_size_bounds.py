"""Estimates of results are upper bounds, and not far above."""

import json

import pytest
from jinja2.exceptions import SecurityError

from frontend.templates.size_bounds import (
    GROWTH,
    check_date_format,
    check_integers,
    formatted,
    repeated,
    weight,
)


@pytest.mark.parametrize(
    ("name", "subject", "args", "kwargs", "result"),
    [
        ("center", "ab", (9,), {}, "ab".center(9)),
        ("zfill", "7", (9,), {}, "7".zfill(9)),
        ("expandtabs", "\t\t", (8,), {}, "\t\t".expandtabs(8)),
        ("replace", "aaa", ("a", "bcd"), {}, "aaa".replace("a", "bcd")),
        ("replace", "aaa", ("", "bcd"), {}, "aaa".replace("", "bcd")),
        ("join", ", ", (["a", "b", "c"],), {}, "a, b, c"),
        ("join", ["a", "b", "c"], (", ",), {}, "a, b, c"),
        ("format", "{:>9}{}", ("a", "bcd"), {}, "{:>9}{}".format("a", "bcd")),
        ("format", "%9d%s", (1, "bcd"), {}, "        1bcd"),
        ("tojson", {"a": [1, "é"]}, (), {"ensure_ascii": True}, json.dumps({"a": [1, "é"]})),
        ("tojson", [[[["x"]]]], (), {"indent": 9}, json.dumps([[[["x"]]]], indent=9)),
        (
            "tojson",
            ["a", "b"],
            (),
            {"separators": ("-" * 9, ":")},
            json.dumps(["a", "b"], separators=("-" * 9, ":")),
        ),
    ],
)
def test_an_estimate_is_an_upper_bound(name, subject, args, kwargs, result):
    assert len(result) - 2 <= GROWTH[name](subject, *args, **kwargs) <= 100 + 20 * len(result)


def test_weights_count_nested_and_repeated_values():
    assert weight("abc") == 3 and weight(7) == 0
    assert weight(["abc", {"k": "de"}]) == 3 + 1 + 2 + 3
    shared = ["x" * 10]
    assert weight([shared, shared]) == 2 * 10 + 4
    value: list = []
    for _ in range(40):
        value = [value, value]
    with pytest.raises(SecurityError):
        weight(value)


def test_products_and_powers():
    assert repeated("ab", 3) == repeated(3, "ab") == 6 and repeated("ab", -1) == 0 and repeated(2, 3) == 0
    check_integers("**", 2, 2000)
    for operator, left, right in (("**", 2, 5000), ("**", 2, -5000), ("*", 1 << 3000, 1 << 3000)):
        with pytest.raises(SecurityError):
            check_integers(operator, left, right)


@pytest.mark.parametrize("template", ["%99999d", "{:99999}", "%*d", "{:{}}", "{:{w}}"])
def test_widths_of_any_spelling_are_refused(template):
    with pytest.raises(SecurityError):
        formatted(template, 1)


def test_dates():
    check_date_format("%-d. %B %Y %H:%M")
    for format in ("%1000d", "%_99d", "%Y" * 200):
        with pytest.raises(SecurityError):
            check_date_format(format)
