"""The Jinja environment of chat templates.

Templates come with checkpoints, so they are untrusted code. Jinja's immutable sandbox keeps them away from
Python's internals; this one also bounds what they can allocate: an operation whose result can be larger than
its inputs is sized before it runs, and its result is charged to the rendering's budget. So are copies: a
slice, and what filters and methods of strings return, since a template may keep any number of them. Time is
bounded by frontend.templates.watchdog, which works because no single call into C takes long once sizes are
bounded.

Every operation that makes strings also keeps track of what in them a client wrote (frontend.templates.taint).
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, pass_environment

from frontend.templates.size_bounds import (
    DEEP,
    GROWTH,
    check_date_format,
    check_integers,
    formatted,
    repeated,
    weight,
)
from frontend.templates.taint import FollowingFormatter, Tainted, is_clean, kept, method_of, percent, shown

MAX_STRING = 32 << 20
"""Characters of one string, items of one list."""
MAX_CHARGE = 256 << 20
"""Characters that the operations of one rendering may produce in all."""
_ITEM = 8
"""Characters that an item of a list counts as."""

_FORBIDDEN_METHODS = frozenset({"encode", "maketrans", "to_bytes", "translate"})
"""Methods whose results grow, and which no template needs: bytes have no use in a prompt."""
_JINJA_ARGUMENTS = frozenset({"_block_vars", "_loop_vars"})
"""Keyword arguments that compiled templates add to calls for Jinja's own use."""
_CHOOSERS = frozenset({"attr", "d", "default", "first", "last", "max", "min", "random"})
"""Filters that return one of their arguments, or of its items."""
_EXACT = frozenset(
    {"capitalize", "format", "join", "lower", "replace", "reverse", "safe", "string", "trim", "upper"}
)
"""Filters whose strings are of methods that know the taint; other filters join strings by themselves."""
_FOLLOWED = (Macro, BlockReference, LoopContext, Cycler, Joiner, Mapping, list, tuple)
"""What returns strings as it has got them, or made of strings that know their taint."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks the assistant's words for training; here it only
    groups."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses the body into a scope of its own, whose variables do not leak, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Generator(CodeGenerator):
    """Routes three operations through the environment that Jinja does not let it intercept."""

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        is_slice = isinstance(node.arg, nodes.Slice)
        self.write("environment.charged(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for argument in node.nodes:
            self.write("str(environment.printed(")
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
    """The environment that transformers sets up for chat templates, with bounds."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = _Generator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed while a template is compiled
            finalize=self.printed,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._local = threading.local()
        self.filters |= {"tojson": _to_json, "join": _join, "format": _format, "safe": _safe}
        self.filters = {name: self._guarded(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _PlainNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _FORBIDDEN_METHODS and super().is_safe_attribute(obj, attr, value)

    @contextmanager
    def budget(self, limit: int = MAX_CHARGE) -> Iterator[None]:
        """Charges growing operations of this thread to `limit` until the end of the block."""
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

    def charged(self, value: Any) -> Any:
        """Returns the result of an operation that may be a copy. Raises SecurityError."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, Mapping | list | tuple):
            self.charge(len(value))
            self._local.left -= (_ITEM - 1) * len(value)
        return value

    def bounded(self, value: Any) -> Any:
        """Returns the value if it may be printed or compared. Raises SecurityError."""
        if isinstance(value, Mapping | list | tuple) and weight(value) > MAX_STRING:
            raise SecurityError("the chat template makes too large a value")
        return value

    def printed(self, value: Any) -> Any:
        """Returns what is printed for a value. Raises SecurityError."""
        return shown(self.bounded(value))

    def concat(self, parts: Iterable[str]) -> str:
        """Joins the parts of `~`, macros and captured blocks."""
        parts = list(parts)
        self.charge(sum(map(len, parts)))
        clean = not any(isinstance(part, Tainted) for part in parts)
        return "".join(parts) if clean else str(method_of("", "join")(parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies an operator whose result can be larger than its operands."""
        if isinstance(left, int) and isinstance(right, int):
            check_integers(operator, left, right)
        elif operator == "*":
            self.charge(repeated(left, right))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.charge(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            self.charge(formatted(left, *(right if isinstance(right, tuple) else (right,))))
            return percent(left, right)
        return kept(super().call_binop(context, operator, left, right), left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        """Calls a function. Methods of strings are bounded like the filters of the same name."""
        owner = getattr(__obj, "__self__", None)
        growth = GROWTH.get(getattr(__obj, "__name__", ""))
        if growth is not None and isinstance(owner, str):
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            own = {name: value for name, value in kwargs.items() if name not in _JINJA_ARGUMENTS}
            __self.charge(growth(owner, *args, **own))
        given = [*args, *kwargs.values()]
        if isinstance(owner, str) and not isinstance(owner, Tainted) and not all(map(is_clean, given)):
            __obj = method_of(owner, __obj.__name__)
        result = super().call(__context, __obj, *args, **kwargs)
        if not isinstance(__obj, _FOLLOWED) and not isinstance(owner, _FOLLOWED):
            result = kept(result, owner, *given)
        if isinstance(owner, str | list | tuple | Mapping):
            __self.charged(result)
            if isinstance(owner, str) and isinstance(result, list | tuple):  # of its parts
                __self.charge(len(owner))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bounds `str.format` and `str.format_map`, which Jinja replaces by its own."""
        method = super().wrap_str_format(value)
        if method is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self.charge(formatted(value.__self__, *args, **kwargs))
            formatter = FollowingFormatter(self)
            mapping = args[0] if value.__name__ == "format_map" else kwargs
            given = () if value.__name__ == "format_map" else args
            return formatter.result(formatter.vformat(value.__self__, given, mapping))

        return bounded

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a filter that is sized before it runs if it can make much out of little, else charged for
        its result, and whose strings are tainted where an argument may be."""
        # Filters that need the environment or the context get it as their first argument.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        growth, is_sized = GROWTH.get(name), name in GROWTH or name in DEEP

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if is_sized:
                subject = args[first]
                if isinstance(subject, Iterator):
                    subject = list(subject)
                    args = (*args[:first], subject, *args[first + 1 :])
                self.bounded(subject)
            if growth is not None:
                self.charge(growth(*args[first:], **kwargs))
            result = function(*args, **kwargs)
            if name not in _CHOOSERS:
                if isinstance(result, Tainted) and name not in _EXACT:
                    result = result.plain
                result = kept(result, *args[first:], *kwargs.values())
            return result if is_sized else self.charged(result)

        guarded.__dict__.update(getattr(function, "__dict__", {}))
        return guarded


@pass_environment
def _join(environment: Sandbox, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    """Jinja's own filter loses the taint."""
    items = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return str(method_of(str(shown(d)), "join")([str(shown(item)) for item in items]))


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's own filter loses the taint."""
    return percent(str(shown(value)), kwargs or args)


def _safe(value: Any) -> Any:
    """Does nothing: nothing is escaped."""
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which does not suit language models."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    check_date_format(format)
    return datetime.now().strftime(format)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict(...)` without the class and its attributes."""
    return dict(*args, **kwargs)


class _PlainNamespace(Namespace):
    """`namespace(...)` without private names, which Python would treat as its own."""

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
