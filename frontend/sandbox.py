"""The Jinja environment of chat templates.

Templates come with checkpoints, so they are code of strangers. Jinja's immutable sandbox keeps them
away from Python's internals; this one also bounds what they can allocate: an operation whose result
can be larger than its inputs is sized before it runs, and what it makes is charged to the rendering's
budget. Time is bounded elsewhere (frontend.watchdog), which works because no single call into C can
take long once sizes are bounded.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STRING = 32 << 20
"""Characters of one string, items of one list."""
MAX_CHARGE = 256 << 20
"""Characters that the growing operations of one rendering may make in all."""
MAX_NODES = 200_000
"""Values inside a value. A list that holds another one twice counts it twice: so does str()."""
MAX_INT_BITS = 4096
"""Size of an integer."""
MAX_WIDTH = 4096
"""Columns, indents and precisions."""

_JINJA_ARGUMENTS = frozenset({"_block_vars", "_loop_vars"})
"""What compiled templates add to calls for Jinja's own use."""
_WIDE_FORMAT = re.compile(r"\d{5}|\*")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant says; here it only groups."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own: what it sets does not leak, as with transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Generator(CodeGenerator):
    """Sends the two operations through the environment that Jinja does not let it intercept."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for argument in node.nodes:
            self.write("str(environment.bounded(")
            self.visit(argument, frame)
            self.write(")), ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(environment.bounded(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.write(f" {operators[operand.op]} environment.bounded(")
            self.visit(operand.expr, frame)
            self.write(")")
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """As transformers sets it up for chat templates, with bounds."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = _Generator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while a template is compiled
            finalize=self.bounded,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._local = threading.local()
        self.filters["tojson"] = _to_json
        for name in (_GROWTH.keys() | _DEEP) & self.filters.keys():
            self.filters[name] = self._bounded_filter(self.filters[name], _GROWTH.get(name))
        del self.globals["lipsum"]
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _PlainNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @contextmanager
    def budget(self, limit: int = MAX_CHARGE) -> Iterator[None]:
        """Growing operations of this thread are charged to `limit` until the end of the block."""
        self._local.left = limit
        try:
            yield
        finally:
            del self._local.left

    def charge(self, size: int) -> None:
        """Accounts for a value of `size` characters or items. Raises SecurityError."""
        if size > MAX_STRING:
            raise SecurityError("the chat template makes too large a value")
        self._local.left -= size
        if self._local.left < 0:
            raise SecurityError("the chat template makes too many large values")

    def bounded(self, value: Any) -> Any:
        """The value itself, if it may be printed or compared. Raises SecurityError."""
        if isinstance(value, Mapping | list | tuple) and _weight(value) > MAX_STRING:
            raise SecurityError("the chat template makes too large a value")
        return value

    def concat(self, parts: Iterable[str]) -> str:
        """What `~`, macros and captured blocks are joined with."""
        parts = list(parts)
        self.charge(sum(map(len, parts)))
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators whose result can be larger than either operand."""
        if isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator == "*":
            self.charge(_repeated(left, right))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.charge(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            self.charge(_formatted(left, *(right if isinstance(right, tuple) else (right,))))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        """Calls. Methods of strings are bounded like the filters of the same name."""
        owner = getattr(__obj, "__self__", None)
        growth = _GROWTH.get(getattr(__obj, "__name__", ""))
        if growth is not None and isinstance(owner, str):
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            own = {name: value for name, value in kwargs.items() if name not in _JINJA_ARGUMENTS}
            __self.charge(growth(owner, *args, **own))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, which Jinja replaces by its own."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self.charge(_formatted(value.__self__, *args, **kwargs))
            return formatted(*args, **kwargs)

        return bounded

    def _bounded_filter(
        self, function: Callable[..., Any], growth: Callable[..., int] | None
    ) -> Callable[..., Any]:
        # A filter that wants the environment or the context gets it as its first argument.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        def bounded(*args: Any, **kwargs: Any) -> Any:
            subject = args[first]
            if isinstance(subject, Iterator):
                subject = list(subject)
                args = (*args[:first], subject, *args[first + 1 :])
            self.bounded(subject)
            if growth is not None:
                self.charge(growth(*args[first:], **kwargs))
            return function(*args, **kwargs)

        bounded.__dict__.update(function.__dict__)
        return bounded


def _weight(value: Any) -> int:
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


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length()
    bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
    if bits > MAX_INT_BITS:
        raise SecurityError("the chat template computes too large a number")


def _repeated(left: Any, right: Any) -> int:
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
    return len(items) * len(str(separator)) + (_weight(items) if isinstance(items, list | tuple) else 0)


def _indented(subject: Any, width: Any = 4, *args: Any, **options: Any) -> int:
    return _size(subject) + (str(subject).count("\n") + 1) * _width(width)


def _tabbed(subject: Any, tabsize: Any = 8) -> int:
    return _size(subject) * max(_width(tabsize), 1)


def _wrapped(subject: Any, *args: Any, wrapstring: Any = None, **options: Any) -> int:
    wrap = wrapstring if wrapstring is not None else args[2] if len(args) > 2 else "\n"
    return _size(subject) * (1 + len(str(wrap)))


def _formatted(subject: Any, *args: Any, **kwargs: Any) -> int:
    """`%` and `str.format`: every placeholder may name the largest argument."""
    template = str(subject)
    if _WIDE_FORMAT.search(template):
        raise SecurityError("the chat template formats too wide a field")
    largest = max(map(_weight, (*args, *kwargs.values())), default=0)
    return len(template) + (template.count("%") + template.count("{")) * largest


def _batched(subject: Any, count: Any, *fill: Any, **options: Any) -> int:
    return _size(subject) + _width(count)


def _jsoned(subject: Any, ensure_ascii: Any = False, indent: Any = None, *args: Any, **options: Any) -> int:
    _width(indent or 0)
    return _weight(subject)


_GROWTH: dict[str, Callable[..., int]] = {
    "batch": _batched,
    "center": _padded,
    "expandtabs": _tabbed,
    "format": _formatted,
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

_DEEP = frozenset({"groupby", "max", "min", "pprint", "sort", "string", "sum", "unique"})
"""Filters that print or compare whole values."""


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which a language model has no use for."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict(...)` without the class and its attributes."""
    return dict(*args, **kwargs)


class _PlainNamespace(Namespace):
    """`namespace(...)` that stores no private names, which Python would treat as its own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: B902 - so that `self` can be a name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError("a chat template cannot use names that begin with an underscore")
