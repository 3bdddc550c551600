"""Finds recursion without a way out: a rule, or a `$ref` of a schema, that no finite text matches.

llguidance takes such a grammar, since each single step of an output is possible; an output that enters the
rule can only go on until a limit ends it. A rule is finite if one of its alternatives has finite parts only;
those that are not found finite by repeating that until nothing changes are endless.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

_RULE = re.compile(
    r"[?!]?(?P<name>[A-Za-z_][\w-]*)(?:\.-?\d+)?\s*(?:\[(?:\"(?:\\.|[^\"\\])*\"|[^\]\"])*\])?\s*:(?!:)"
)
_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|#[^\n]*|%(?:ignore|import|llguidance|declare)\b[^\n]*)"
    r"|(?P<text>\"(?:\\.|[^\"\\])*\"i?|/(?:\\.|[^/\\])+/[a-z]*|<[^>\n]*>)"
    r"|(?P<inline>%(?:json|regex)\s*)"
    r"|(?P<name>[A-Za-z_][\w-]*)"
    r"|(?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\}|~\s*\d+(?:\s*\.\.\s*\d+)?|\.\.)"
    r"|(?P<mark>[()\[\]|?*+])"
)
_LEAST = re.compile(r"\d+")
_IN_SCHEMA = ("items", "additionalProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_TABLES = ("properties", "patternProperties")


class _Unread(Exception):
    """A notation that is not known here. llguidance has judged it; nothing is said about it."""


def endless_part(grammar: str) -> str:
    """Returns the part of a valid grammar that never ends, such as `the rule "a"`; "": there is none.

    A part that no output reaches does not count."""
    try:
        if not grammar.startswith("{"):
            return _endless_rule(grammar)
        for part in json.loads(grammar)["grammars"]:
            schema, lark = part.get("json_schema"), part.get("lark_grammar")
            if found := _endless_rule(lark) if lark else _endless_reference(schema):
                return found
    except (_Unread, RecursionError):
        pass
    return ""


def _endless_rule(lark: str) -> str:
    rules = dict(_rules(lark))
    used: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in rules and name not in visited:
            visited.add(name)
            for other in _names(rules[name]):
                visit(other)
            used[name] = None

    visited: set[str] = set()
    visit("start")
    for name in used:
        for schema in _schemas(rules[name]):
            if found := _endless_reference(schema):
                return found
    endless = _not_finite(used, lambda name, finite: _is_finite(rules[name], finite, rules))
    return f'the rule "{endless}"' if endless else ""


def _not_finite(names: Iterable[str], is_finite: Callable[[str, set[str]], bool]) -> str:
    """Returns a name that is not finite; "": none. is_finite: given those that are known to be."""
    finite: set[str] = set()
    left = list(names)  # what a name refers to comes first, but for recursion
    while True:
        num_known = len(finite)
        for name in left:
            if is_finite(name, finite):
                finite.add(name)
        left = [name for name in left if name not in finite]
        if len(finite) == num_known:
            return left[0] if left else ""


class _Any(list[Any]):
    """Alternatives. An expression is one of these, a list of parts, the name of a rule, or a schema."""


def _rules(lark: str) -> Iterator[tuple[str, Any]]:
    place = 0
    while place < len(lark):
        if (skipped := _TOKEN.match(lark, place)) and skipped.lastgroup == "skip":
            place = skipped.end()
            continue
        rule = _RULE.match(lark, place)
        if rule is None:
            raise _Unread
        expression, place = _alternatives(lark, rule.end())
        yield rule["name"], expression


def _alternatives(lark: str, place: int) -> tuple[_Any, int]:
    """Returns the expression at a place, and where it ends: at a bracket, or before the next rule."""
    found = _Any([[]])
    while place < len(lark):
        token = _TOKEN.match(lark, place)
        if _RULE.match(lark, place) and (token is None or token.lastgroup == "name"):
            break
        if token is None:
            raise _Unread
        place = token.end()
        parts = found[-1]
        if token.lastgroup == "name":
            parts.append(token[0])
        elif token.lastgroup == "inline":
            schema, place = _json_at(lark, place)
            parts.append(schema if token[0].startswith("%json") else [])
        elif token.lastgroup == "text":
            parts.append([])
        elif token[0] in ("?", "*") or (token.lastgroup == "count" and _may_be_none(token[0])):
            parts[-1:] = [_Any([[], parts[-1:]])]
        elif token[0] == "|":
            found.append([])
        elif token[0] in ("(", "["):
            inner, place = _alternatives(lark, place)
            parts.append(_Any([[], inner]) if token[0] == "[" else inner)
            place += 1
        elif token[0] in (")", "]"):
            return found, place - 1
    return found, place


def _may_be_none(count: str) -> bool:
    least = _LEAST.search(count.split(",")[0])
    return count != ".." and (least is None or int(least[0]) == 0)


def _json_at(text: str, place: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except ValueError:
        raise _Unread from None


def _names(expression: Any) -> Iterator[str]:
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, list):
        for part in expression:
            yield from _names(part)


def _schemas(expression: Any) -> Iterator[Any]:
    if isinstance(expression, dict):
        yield expression
    elif isinstance(expression, list):
        for part in expression:
            yield from _schemas(part)


def _is_finite(expression: Any, finite: set[str], rules: dict[str, Any]) -> bool:
    if isinstance(expression, str):  # a terminal is a regular expression
        return expression in finite or expression not in rules or expression.isupper()
    if not isinstance(expression, list):
        return True
    parts = (_is_finite(part, finite, rules) for part in expression)
    return any(parts) if isinstance(expression, _Any) else all(parts)


def _endless_reference(root: Any) -> str:
    """Returns the `$ref` of a schema, within the document, whose values never end; "": none."""
    targets: dict[str, Any] = {}
    order: dict[str, None] = {}

    def visit(schema: Any) -> None:
        if not isinstance(schema, dict):
            return
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref.startswith("#") and ref not in targets:
            targets[ref] = _target(root, ref)
            visit(targets[ref])
            order[ref] = None
        for part in _parts(schema):
            visit(part)

    visit(root)
    endless = _not_finite(order, lambda ref, finite: _has_finite_value(targets[ref], finite))
    return f'the $ref "{endless}"' if endless else ""


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    for key in _IN_SCHEMA:
        yield schema.get(key)
    for key in _LISTS:
        if isinstance(parts := schema.get(key), list):
            yield from parts
    for key in _TABLES:
        if isinstance(table := schema.get(key), dict):
            yield from table.values()


def _target(root: Any, ref: str) -> Any:
    """Returns the schema at a JSON pointer; True, which allows anything, where there is none."""
    target = root
    for key in unquote(ref).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdigit() and int(key) < len(target):
            target = target[int(key)]
        elif isinstance(target, dict) and key in target:
            target = target[key]
        else:
            return True
    return target


def _has_finite_value(schema: Any, finite: set[str]) -> bool:
    """Returns whether a value of the schema ends. finite: references whose values do."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return True
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#") and ref not in finite:
        return False
    if not all(_has_finite_value(part, finite) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_has_finite_value(part, finite) for part in schema[key]):
            return False
    kinds = schema.get("type", "null")
    return any(
        _has_finite_members(schema, finite)
        if kind == "object"
        else kind != "array" or _has_finite_items(schema, finite)
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _has_finite_members(schema: dict[str, Any], finite: set[str]) -> bool:
    others = schema.get("additionalProperties", True)
    known = schema.get("properties", {})
    return all(_has_finite_value(known.get(name, others), finite) for name in schema.get("required", ()))


def _has_finite_items(schema: dict[str, Any], finite: set[str]) -> bool:
    least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
    needed = first[:least] + [schema.get("items", True)] * (least > len(first))
    return all(_has_finite_value(part, finite) for part in needed)
