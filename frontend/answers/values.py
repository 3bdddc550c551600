"""Values of arguments that a model writes without JSON's quotes, cast by the schema of the argument."""

import ast
import contextlib
import json
import math
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from frontend.answers.tables import ValueStyle

_PYTHON = re.compile(r"""'[^'\\]*+'|"[^"\\]*+"|\b(?:True|False|None)\b""")
"""What Python and JSON write differently, where nothing is escaped."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_JSON_NAMES = {"True": "true", "False": "false", "None": "null"}
MAX_BITS = 4096
"""Of an integer: Python refuses to write much larger ones in decimal."""
MAX_LITERAL = 1 << 16
"""Characters that are parsed as a Python literal; a longer value is a string."""
NAMES = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "True": True,
    "False": False,
    "None": None,
}
_NULLS = frozenset({"null", "None"})
_BOOLEANS = {"true": True, "false": False}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_ALL = frozenset({*_JSON_TYPES.values(), "null"})
_HINTS = {
    "object": ("properties", "additionalProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("format", "pattern", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Type -> keywords that are about values of this type only."""
MAX_DEPTH = 8
"""Schemas within schemas, and references to them, that are looked into."""
MAX_ENTRIES = 100_000
"""Entries of schemas that are looked at in one request's tools, each as often as it is referred to."""


def value_of(text: str, style: ValueStyle, schema: Mapping[str, Any] | None) -> Any:
    """Returns the JSON value that a bare text stands for: the one that fits the schema, else the text.

    schema: of the argument, resolved; None: unknown.
    """
    if style is ValueStyle.STRING:
        return text
    types = types_of(schema or {}) if style is ValueStyle.BY_SCHEMA else _ALL - {"string"}
    if types == {"string"} and (schema or {}).get("type") == "string":
        return text
    word = text.strip()
    if "null" in types and word in _NULLS:
        return None
    if "boolean" in types and word.lower() in _BOOLEANS and (types != _ALL or word in _BOOLEANS):
        return _BOOLEANS[word.lower()]
    for read in (json_value, literal) if types != _ALL else (json_value,):
        with contextlib.suppress(ValueError, RecursionError):
            value = read(word)
            if _fits(value, types) and (read is json_value or "string" not in types):
                return value
    return text


def types_of(schema: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Returns the JSON types that a schema allows, as far as it says; a number may be an integer."""
    found = _ALL
    if depth > MAX_DEPTH:
        return found
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    named = [each for each in kinds if isinstance(each, str) and each in _ALL]
    if named:
        found &= frozenset(named) | ({"integer"} if "number" in named else set())
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found &= {_type(value) for value in values}
    for keyword in ("anyOf", "oneOf"):
        if parts := _schemas(schema.get(keyword)):
            found &= frozenset().union(*(types_of(part, depth + 1) for part in parts))
    for part in _schemas(schema.get("allOf")):
        found &= types_of(part, depth + 1)
    if found == _ALL:
        hinted = {kind for kind, keywords in _HINTS.items() if any(each in schema for each in keywords)}
        found = frozenset(hinted | ({"integer"} if "number" in hinted else set())) or _ALL
    return found | {"null"} if schema.get("nullable") is True and found != _ALL else found


class _Resolver:
    """Puts in what a tool's schema refers to, until `left` entries have been looked at."""

    def __init__(self, root: Mapping[str, Any], left: int):
        self._root = root
        self.left = left

    def resolve(self, schema: Any, depth: int = 0) -> dict[str, Any]:
        """Returns a schema with what it refers to put in: itself, its alternatives and parts."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self.left <= 0:
            return {}
        self.left -= 1 + sum(len(each) if isinstance(each, list | dict) else 1 for each in schema.values())
        found = {**schema}
        reference = found.pop("$ref", None)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(found.get(keyword), list):
                found[keyword] = [self.resolve(part, depth + 1) for part in found[keyword]]
        if isinstance(reference, str) and reference.startswith("#"):
            target: Any = self._root
            for step in reference[1:].split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                target = target.get(step) if isinstance(target, dict) else None
            target = self.resolve(target, depth + 1)
            found = {**found, "allOf": [*_schemas(found.get("allOf")), target]} if found else target
        return found


def schemas_of(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the resolved schema of each argument that each tool's schema names.

    References can multiply, so that MAX_ENTRIES of all tools together are looked at; the rest is unknown.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    left = MAX_ENTRIES
    for name, parameters in tools.items():
        resolver = _Resolver(parameters, left)
        found[name] = _arguments_of(parameters, resolver)
        left = resolver.left
    return found


def _arguments_of(parameters: Mapping[str, Any], resolver: _Resolver) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    parts = [resolver.resolve(parameters)]
    for part in parts:  # which grows
        properties = part.get("properties")
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            if isinstance(schema, dict) and name not in found:
                found[name] = resolver.resolve(schema)
        parts += [each for keyword in ("allOf", "anyOf", "oneOf") for each in _schemas(part.get(keyword))]
    return found


def _schemas(parts: Any) -> list[dict[str, Any]]:
    return [part if isinstance(part, dict) else {} for part in parts] if isinstance(parts, list) else []


def _type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "null")


def _fits(value: Any, types: frozenset[str]) -> bool:
    if isinstance(value, dict | list):
        return not types.isdisjoint({"object", "array"})  # the wrong one of both is no text
    whole = isinstance(value, float) and value.is_integer() and "integer" in types
    return whole or _type(value) in types


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
            return json_value(_PYTHON.sub(_as_json, text))
    if len(text) > MAX_LITERAL:
        raise ValueError("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of "1if" and the like
            return _convert(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _as_json(found: re.Match[str]) -> str:
    """Returns a string or a name as JSON spells it."""
    if found[0] in _JSON_NAMES:
        return _JSON_NAMES[found[0]]
    return found[0] if found[0].startswith('"') else json.dumps(found[0][1:-1])


def _convert(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as value):
            return whole_text(value)
        case ast.Constant(value=int() | float() | None as value):
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError("too large")
            return _finite(repr(value)) if isinstance(value, float) else value
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as number):
            return -_convert(number)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_convert(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _convert(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return whole_text(node.value)
    raise ValueError("no name")


def whole_text(text: str) -> str:
    """Returns a text with U+FFFD for halves of surrogate pairs, which escapes can spell and UTF-8 cannot."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def json_value(text: str) -> Any:
    """Returns the value of a JSON text. Raises ValueError."""
    value = _DECODER.decode(text)
    return _whole(value) if "\\u" in text else value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {whole_text(key): _whole(item) for key, item in value.items()}
    return value


def is_object(text: str) -> bool:
    """Returns whether a text is a JSON object, in which NaN and Infinity have no place."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _finite(text: str) -> float:
    """Returns a number, and the largest one for those beyond it, which JSON has no way to write."""
    value = float(text)
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _refuse(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
