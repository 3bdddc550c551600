"""How large the results of a chat template's operations can become, before they run (see
frontend.text.jinja_sandbox). Each estimate is an upper bound; sizes are in characters or items."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

MAX_NODES = 200_000
"""Values inside a value. A list that holds another one twice counts it twice: so does str()."""
MAX_INT_BITS = 4096
"""Size of an integer."""
MAX_WIDTH = 4096
"""Columns, indents and precisions."""

_WIDE_FORMAT = re.compile(r"\d{5}|\*")


def weight(value: Any) -> int:
    """About the characters that str(value) has. Raises SecurityError for more than MAX_NODES values."""
    num_nodes = total = 0
    stack = [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, str):
            total += len(inner)
        elif isinstance(inner, Mapping | list | tuple):
            num_nodes += len(inner)
            if num_nodes > MAX_NODES:
                raise SecurityError("the chat template makes too deep a value")
            stack.extend(inner.values() if isinstance(inner, Mapping) else inner)
    return total + num_nodes


def check_integers(operator: str, left: int, right: int) -> None:
    """Raises SecurityError when an operation on integers may have too large a result."""
    bits = left.bit_length()
    bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
    if bits > MAX_INT_BITS:
        raise SecurityError("the chat template computes too large a number")


def repeated(left: Any, right: Any) -> int:
    """Length of sequence * count, either way round; 0 for other products."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(sequence, "__len__"):
            return len(sequence) * max(count, 0)
    return 0


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _width(value: Any) -> int:
    width = len(value) if isinstance(value, str) else abs(int(value))
    if width > MAX_WIDTH:
        raise SecurityError("the chat template asks for too wide a field")
    return width


def _padded(subject: Any, width: Any = 80, *fill: Any) -> int:
    return _size(subject) + _width(width)


def _replaced(subject: Any, old: Any, new: Any, *count: Any) -> int:
    return _size(subject) + (_size(subject) // max(len(str(old)), 1) + 1) * len(str(new))


def _joined(subject: Any, d: Any = "", attribute: Any = None) -> int:
    """The filter `items | join(separator)` and the method `separator.join(items)`."""
    items, separator = (d, subject) if isinstance(subject, str) and not isinstance(d, str) else (subject, d)
    return len(items) * len(str(separator)) + (weight(items) if isinstance(items, list | tuple) else 0)


def _indented(subject: Any, width: Any = 4, *args: Any, **options: Any) -> int:
    return _size(subject) + (str(subject).count("\n") + 1) * _width(width)


def _tabbed(subject: Any, tabsize: Any = 8) -> int:
    return _size(subject) * max(_width(tabsize), 1)


def _wrapped(subject: Any, *args: Any, wrapstring: Any = None, **options: Any) -> int:
    wrap = wrapstring if wrapstring is not None else args[2] if len(args) > 2 else "\n"
    return _size(subject) * (1 + len(str(wrap)))


def formatted(subject: Any, *args: Any, **kwargs: Any) -> int:
    """`%` and `str.format`: every placeholder may name the largest argument."""
    template = str(subject)
    if _WIDE_FORMAT.search(template):
        raise SecurityError("the chat template formats too wide a field")
    largest = max(map(weight, (*args, *kwargs.values())), default=0)
    return len(template) + (template.count("%") + template.count("{")) * largest


def _batched(subject: Any, count: Any, *fill: Any, **options: Any) -> int:
    return _size(subject) + _width(count)


def _jsoned(subject: Any, ensure_ascii: Any = False, indent: Any = None, *args: Any, **options: Any) -> int:
    _width(indent or 0)
    return weight(subject)


GROWTH: dict[str, Callable[..., int]] = {
    "batch": _batched,
    "center": _padded,
    "expandtabs": _tabbed,
    "format": formatted,
    "indent": _indented,
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "slice": _batched,
    "tojson": _jsoned,
    "wordwrap": _wrapped,
    "zfill": _padded,
}
"""Filters, and methods of strings, that can make much out of little -> an upper bound of what."""

DEEP = frozenset({"groupby", "max", "min", "pprint", "sort", "string", "sum", "unique"})
"""Filters that print or compare whole values."""
