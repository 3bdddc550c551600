"""How large the results of a chat template's operations can become, before they run (see
frontend.templates.jinja_sandbox). Each estimate is an upper bound; sizes are in characters or items."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from jinja2.exceptions import SecurityError

MAX_NODES = 200_000
"""Values inside a value. An item that occurs twice counts twice, as it does for str()."""
MAX_INT_BITS = 4096
"""Size of an integer."""
MAX_WIDTH = 4096
"""Columns, indents and precisions."""

MAX_DATE_FORMAT = 256
"""Characters of a strftime format; a directive becomes 30 characters or so."""

_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*:[^{}]*\{")
"""A width of five digits, a width from an argument of `%`, or one from an argument of str.format."""
_WIDE_DATE = re.compile(r"%[-_0^#]*[1-9]")
"""A directive with a width, a GNU extension."""
_ESCAPED = 6
"""Characters that JSON may need for one."""


def weight(value: Any) -> int:
    """Returns about the number of characters of str(value). Raises SecurityError for more than MAX_NODES
    values."""
    num_characters, num_nodes, _ = _measured(value)
    return num_characters + num_nodes


def _parts(value: Any) -> Iterable[Any]:
    """Returns the values that a container prints: of a mapping the keys, too."""
    return chain(value.keys(), value.values()) if isinstance(value, Mapping) else value


def _measured(value: Any) -> tuple[int, int, int]:
    """Returns the characters in a value's strings, the number of values in it, and how deep they are nested.
    Raises SecurityError for more than MAX_NODES values."""
    num_characters = num_nodes = depth = 0
    stack = [(value, 0)]
    while stack:
        inner, level = stack.pop()
        if isinstance(inner, str):
            num_characters += len(inner)
        elif isinstance(inner, Mapping | list | tuple):
            num_nodes += len(inner)
            depth = max(depth, level + 1)
            if num_nodes > MAX_NODES:
                raise SecurityError("the chat template makes too deep a value")
            stack.extend((part, level + 1) for part in _parts(inner))
    return num_characters, num_nodes, depth


def check_integers(operator: str, left: int, right: int) -> None:
    """Raises SecurityError when an operation on integers may have too large a result."""
    bits = left.bit_length()
    bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
    if bits > MAX_INT_BITS:
        raise SecurityError("the chat template computes too large a number")


def repeated(left: Any, right: Any) -> int:
    """Returns the length of sequence * count, either way round; 0 for other products."""
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
    """`%` and `str.format`: every placeholder may name the largest argument, or have the largest width."""
    template = str(subject)
    if _WIDE_FORMAT.search(template):
        raise SecurityError("the chat template formats too wide a field")
    largest = max(map(weight, (*args, *kwargs.values())), default=0)
    widest = max(map(int, re.findall(r"[0-9]+", template)), default=0)
    return len(template) + (template.count("%") + template.count("{")) * max(largest, widest)


def check_date_format(format: str) -> None:
    """Raises SecurityError when strftime(format) may have too large a result."""
    if len(format) > MAX_DATE_FORMAT or _WIDE_DATE.search(format):
        raise SecurityError("the chat template formats too wide a date")


def _batched(subject: Any, count: Any, *fill: Any, **options: Any) -> int:
    return _size(subject) + _width(count)


def _jsoned(
    subject: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, *args: Any, **_: Any
) -> int:
    num_characters, num_nodes, depth = _measured(subject)
    between = sum(map(_size, separators or ())) + depth * _width(indent or 0) + 4
    return _ESCAPED * num_characters + (num_nodes + 1) * between


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
