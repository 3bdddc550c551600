"""Tainted strings behave as plain ones, and know what a client wrote, whatever a template does with them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.templates.jinja_sandbox import Sandbox
from frontend.templates.taint import Tainted, taint_of, tainted

CLIENT = "ABC <D>"
"""What a client writes: capitals. Templates of these tests write small letters."""

FOLLOWED = [
    ("{{ 'x' + a + 'y' }}", "xABC <D>y"),
    ("{{ 'x' ~ a ~ 1 }}", "xABC <D>1"),
    ("{{ 'x%s%%y%d' % (a, 3) }}", "xABC <D>%y3"),
    ("{{ 'x%(k)sy' % {'k': a} }}", "xABC <D>y"),
    ("{{ 'x%sy' | format(a) }}", "xABC <D>y"),
    ("{{ 'x{}y{k}'.format(a, k=1) }}", "xABC <D>y1"),
    ("{{ 'x{0[1]}y'.format([1, a]) }}", "xABC <D>y"),
    ("{{ 'x{k}y'.format_map({'k': a}) }}", "xABC <D>y"),
    ("{{ ['x', a] | join('y') }}", "xyABC <D>"),
    ("{{ [{'k': a}, {'k': 'x'}] | join('y', attribute='k') }}", "ABC <D>yx"),
    ("{{ 'y'.join(['x', a]) }}", "xyABC <D>"),
    ("{{ a.split(' ') | join('x') }}", "ABCx<D>"),
    ("{{ a.replace('B', '') + 'x' }}", "AC <D>x"),
    ("{{ ('x' + a).replace('x', 'yz') }}", "yzABC <D>"),
    ("{{ ('x' + a + 'y')[1:-1] + 'z' }}", "ABC <D>z"),
    ("{{ (a + 'x') | reverse }}", "x>D< CBA"),
    ("{{ (' ' + a + ' ') | trim }}y", "ABC <D>y"),
    ("{{ a | safe }}x", "ABC <D>x"),
    ("{% for c in a %}{{ c }}x{% endfor %}", "AxBxCx x<xDx>x"),
    ("{% set x %}y{{ a }}{% endset %}{{ x ~ 'z' }}", "yABC <D>z"),
    ("{% macro f(v) %}x{{ v }}{% endmacro %}{{ f(a) }}y", "xABC <D>y"),
    ("{% macro f(v) %}x{% endmacro %}{{ f(a) }}", "x"),
    ("{% call(v) g() %}x{{ v }}{% endcall %}", ""),
    ("{% filter trim %} x{{ a }} {% endfilter %}", "xABC <D>"),
    ("{% set n = namespace(t='x') %}{% set n.t = n.t + a %}{{ n.t }}y", "xABC <D>y"),
    ("{{ {'k': a}.get('k') }}x{{ {'k': 'y'}.get(a, 'z') }}", "ABC <D>xz"),
    ("{{ a.partition(' ')[2] }}x", "<D>x"),
    ("{{ [a, 'x'] | first }}{{ [a, 'x'] | last }}", "ABC <D>x"),
    ("{{ (a if a.startswith('A') and 'C' in a and a == 'ABC <D>' else '') ~ 'x' }}", "ABC <D>x"),
]
"""Templates -> what they print; each capital, blank and bracket in it is the client's."""

WHOLE = [
    "{{ '{!r}'.format(a) }}",
    "{{ '{0!a}'.format(a) }}",
    "{{ '{!s}'.format([a]) }}",
    "{{ [a] }}",
    "{{ {'k': a} }}",
    "{{ {'k': [a]} | tojson }}",
    "{{ [a] | tojson(indent=1) }}",
    "{{ {'k': a} | string }}",
    "{{ [a] | pprint }}",
    "{{ a | escape }}",
    "{{ a | title }}",
    "{{ a | indent }}",
    "{{ {'k': {'j': a}} | tojson(indent=4) | indent(8) }}",
    "{{ (a ~ '\n' ~ a) | indent }}",
    "{{ a | wordwrap(3) }}",
    "{{ a | center(30) }}",
    "{{ a.zfill(30) }}",
    "{{ a | urlencode }}",
    "{{ a | truncate(5, true) }}",
    "{{ {'k': a} | xmlattr }}",
    "{{ a | list }}",
    "{{ '%20s' | format(a) }}",
    "{{ '{:>20}'.format(a) }}",
    "{{ '%r' % (a,) }}",
    "{{ namespace(k=a) }}",
    "{{ a.format() }}",
    "{{ strftime_now(a) }}",
]
"""Templates that print nothing but what is a client's, or made of it."""


def rendered(source: str, text: str = CLIENT) -> Tainted:
    sandbox = Sandbox()
    source = "{% macro g() %}{% if false %}{{ caller(1) }}{% endif %}{% endmacro %}" + source
    with sandbox.budget():
        return tainted("").join(sandbox.from_string(source).generate({"a": tainted(text)}))


@pytest.mark.parametrize(("source", "expected"), FOLLOWED)
def test_each_character_is_followed(source: str, expected: str) -> None:
    found = rendered(source)
    assert found == expected
    assert taint_of(found) == bytes(character in "ABC <D>" for character in expected)


@pytest.mark.parametrize("source", WHOLE)
def test_what_is_made_of_a_clients_text_is_a_clients(source: str) -> None:
    found = rendered(source)
    assert found and taint_of(found).strip(b"\1") in (b"", b"\0" * 3)


def test_what_replaces_a_clients_text_is_a_clients() -> None:
    """Else a client chooses where the template's replacement stands."""
    for source in ("{{ a.replace('A', 'x') }}", "{{ ('y' + a).replace('A', 'x')[1:] }}"):
        assert taint_of(rendered(source)) == b"\1" * len(CLIENT)


@pytest.mark.parametrize(("key", "error"), [("type", TypeError), (1.0, TypeError), (9, IndexError)])
def test_indexes_fail_as_those_of_plain_strings(key: Any, error: type[Exception]) -> None:
    """Templates ask whether content is a part by `content.type`, which is undefined for a string."""
    with pytest.raises(error):
        tainted("abc")[key]
    assert rendered("{{ a.type is defined }}{{ a[9] is defined }}{{ a[-1] }}") == "FalseFalse" + CLIENT[-1]


_TEXT = st.text("ab <\n\u00df\u0130", max_size=12)
_METHODS: dict[str, tuple[Any, ...]] = {
    "lower": (),
    "upper": (),
    "title": (),
    "capitalize": (),
    "swapcase": (),
    "casefold": (),
    "strip": (None,),
    "lstrip": ("ab",),
    "rstrip": ("b\n",),
    "split": ("a",),
    "rsplit": (None, 1),
    "splitlines": (True,),
    "partition": ("ab",),
    "rpartition": ("a",),
    "replace": ("a", "xy", 2),
    "removeprefix": ("a",),
    "removesuffix": ("b",),
    "center": (20,),
    "zfill": (9,),
    "join": (["x", "y"],),
    "expandtabs": (),
    "ljust": (9,),
}


@given(parts=st.lists(st.tuples(_TEXT, st.booleans()), max_size=5), method=st.sampled_from(sorted(_METHODS)))
def test_a_tainted_string_is_as_the_plain_one(parts: list[tuple[str, bool]], method: str) -> None:
    """And each character of a result that was a client's is tainted: capitals stay capitals."""
    text = tainted("").join([tainted(part) if client else part for part, client in parts])
    plain = "".join(part for part, _ in parts)
    assert (text, hash(text), len(text)) == (plain, hash(plain), len(plain)) and type(text.plain) is str
    found, expected = getattr(text, method)(*_METHODS[method]), getattr(plain, method)(*_METHODS[method])
    assert found == expected
    for each in [found] if isinstance(found, str) else found:
        assert len(taint_of(each)) == len(each)
    for start in range(len(text)):
        assert taint_of(text[start:]) == taint_of(text)[start:]
