"""Values of arguments that a model writes without JSON's quotes: Python's, Gemma's, and bare text."""

import ast
import contextlib
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

from frontend.answers.tables import PairNotation, ValueStyle

_PYTHON = re.compile(r"""'[^'\\]*+'|"[^"\\]*+"|\b(?:True|False|None)\b""")
"""What Python and JSON write differently, where nothing is escaped."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_JSON_NAMES = {"True": "true", "False": "false", "None": "null"}
MAX_LITERAL = 1 << 16
"""Characters that are parsed as a Python literal; a longer value is a string."""
_NAMES = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "True": True,
    "False": False,
    "None": None,
}


def value_of(text: str, style: ValueStyle, schema: Mapping[str, Any] | None) -> Any:
    """Returns the JSON value that a bare text stands for. schema: of the argument; None: unknown."""
    if style is ValueStyle.STRING:
        return text
    kind = schema.get("type") if schema is not None else None
    if style is ValueStyle.BY_SCHEMA and kind == "string":
        return text
    try:
        return _json(text.strip())
    except (ValueError, RecursionError):
        pass
    if style is ValueStyle.BY_SCHEMA and (kind is None or (isinstance(kind, list) and "string" in kind)):
        return text
    try:
        return literal(text)
    except ValueError:
        return text


def literal(text: str) -> Any:
    """Returns the JSON value of a Python literal, in which true, false and null are known too. Raises
    ValueError."""
    text = text.strip()
    if _NUMBER.fullmatch(text) is not None:
        return int(text)
    if "\\" not in text:
        if text[:1] in ("'", '"') and text.find(text[0], 1) == len(text) - 1 and text.isprintable():
            return text[1:-1]
        # Nearly always JSON but for its spelling, which takes no parser of Python.
        with contextlib.suppress(ValueError, RecursionError):
            return _json(_PYTHON.sub(_in_json, text))
    if len(text) > MAX_LITERAL:
        raise ValueError("too long")
    try:
        return _convert(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _in_json(found: re.Match[str]) -> str:
    """Returns a string or a name as JSON spells it."""
    if found[0] in _JSON_NAMES:
        return _JSON_NAMES[found[0]]
    return found[0] if found[0].startswith('"') else json.dumps(found[0][1:-1])


def _convert(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return _finite(repr(value)) if isinstance(value, float) else value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as number):
            return -_convert(number)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_convert(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _convert(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("no name")


def _json(text: str) -> Any:
    return _DECODER.decode(text)


def _finite(text: str) -> float:
    """Returns a number, and the largest one for those beyond it, which JSON has no way to write."""
    value = float(text)
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _refuse(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def paired_value(text: str, notation: PairNotation) -> Any:
    """Returns the JSON value of one argument in a notation of pairs; text that is none is a string."""
    try:
        if notation.escapes:
            return literal(text)
        value, end = _unescaped(text, 0, notation.quotes[0], notation.separator)
        if text[end:].strip():
            raise ValueError("text after the value")
        return value
    except (ValueError, RecursionError):
        return text.strip()


def _unescaped(text: str, at: int, quote: str, separator: str) -> tuple[Any, int]:
    """Reads a value with strings between `quote`, objects and lists; returns it, and where it ends."""
    at = _skip(text, at)
    if text.startswith(quote, at):
        end = text.index(quote, at + len(quote))
        return text[at + len(quote) : end], end + len(quote)
    if text.startswith("[", at):
        return _unescaped_list(text, at + 1, quote, separator)
    if text.startswith("{", at):
        return _unescaped_object(text, at + 1, quote, separator)
    end = at
    while end < len(text) and text[end] not in ",]}":
        end += 1
    word = text[at:end].strip()
    return (_NAMES[word] if word in _NAMES else _json(word)), end


def _unescaped_list(text: str, at: int, quote: str, separator: str) -> tuple[list[Any], int]:
    items: list[Any] = []
    while not text.startswith("]", at := _skip(text, at)):
        item, at = _unescaped(text, at, quote, separator)
        items.append(item)
        at = _comma(text, at, "]")
    return items, at + 1


def _unescaped_object(text: str, at: int, quote: str, separator: str) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while not text.startswith("}", at := _skip(text, at)):
        colon = text.index(separator, at)
        key = text[at:colon].strip().removeprefix(quote).removesuffix(quote)
        items[key], at = _unescaped(text, colon + len(separator), quote, separator)
        at = _comma(text, at, "}")
    return items, at + 1


def _comma(text: str, at: int, close: str) -> int:
    """Returns the place after a comma, or that of the closing character."""
    at = _skip(text, at)
    if text.startswith(",", at):
        return at + 1
    if text.startswith(close, at):
        return at
    raise ValueError("neither a comma nor an end")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
