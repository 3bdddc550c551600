"""The arguments that a tool's schema names, and their values where a format writes them without JSON's
quotes: strings between marks, and a notation whose keys have no quotes, such as `{a:[1,"b"]}`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.grammar.lark import ANY, SPACED, LarkWriter, SpecialTokens, one_of, optional, sequence, without

ANNOTATIONS = frozenset(
    {
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
"""Keywords that allow and forbid nothing."""
DEFINITIONS = ("$defs", "definitions")
_OBJECT = {"type", "properties", "required", "additionalProperties", *DEFINITIONS} | ANNOTATIONS
_OPEN = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if")
"""Keywords that may name arguments besides `properties`."""
_KEYWORDS = {"type", "enum", "const", "pattern", "minLength", "maxLength", *DEFINITIONS} | ANNOTATIONS
_HARMLESS = re.compile(r"\\[^bBAzZ]|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""In a regular expression: an escaped character, or a class of characters."""
_GROUP = re.compile(r"\((?!\?[^:])[^()]*\)")
NAME = re.compile(r"[\w$][\w$.\-]{0,127}")
"""Names of arguments that need no quotes in any format."""
_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "type"}
_ARRAY = {"type", "items", "minItems", "maxItems", *DEFINITIONS} | ANNOTATIONS
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


class BadSchema(Exception):
    """A schema that cannot be enforced. Its text says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One argument, or one member of an object within one."""

    name: str
    schema: dict[str, Any]
    required: bool


def arguments_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of all arguments, as an object without arguments that the tool does not name. Raises
    BadSchema."""
    if parameters.get("type", "object") != "object":
        raise BadSchema('must have the type "object"')
    if "x-guidance" in parameters:
        raise BadSchema("has the key x-guidance, which is not supported")
    schema = {**parameters, "type": "object"}
    if not any(keyword in parameters for keyword in _OPEN):
        schema.setdefault("additionalProperties", False)
    return schema


def members(schema: dict[str, Any]) -> list[Member]:
    """Returns the members of an object, in the order of its properties. Raises BadSchema."""
    refuse_others(schema, _OBJECT)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise BadSchema("has properties that are no object, or a required that is no list")
    for name in required:
        if name not in properties:
            raise BadSchema(f"requires {name!r}, which is none of its properties")
    definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
    return [
        Member(name, {**definitions, **as_schema(part)}, name in required)
        for name, part in properties.items()
    ]


def as_schema(part: Any) -> dict[str, Any]:
    """Returns a schema as an object. Raises BadSchema."""
    if part is True:
        return {}
    if not isinstance(part, dict):
        raise BadSchema("has a schema that is neither an object nor true")
    return part


def refuse_others(schema: dict[str, Any], known: frozenset[str] | set[str]) -> None:
    """Raises BadSchema for a keyword that is not known."""
    unknown = sorted(schema.keys() - known)
    if unknown:
        raise BadSchema(f"uses {unknown[0]}, which cannot be enforced in this model's format of calls")


def string_pattern(schema: dict[str, Any], barred: str, *, padded: bool) -> str:
    """Returns the pattern of the strings that fit a schema and do not contain `barred`. Raises BadSchema.

    padded: the marks have line breaks of their own; else a line break at either end would be lost.
    """
    refuse_others(schema, _KEYWORDS)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    parts = [_choices(choices, barred)] if choices is not None else [without(barred)]
    if "pattern" in schema:
        parts.append(_searched(schema["pattern"]))
    if "minLength" in schema or "maxLength" in schema:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        parts.append(rf"/(.|\n){{{least},{most}}}/")
    if not padded:
        parts += [r"~/\n(.|\n)*/", r"~/(.|\n)*\n/"]
    return " & ".join([ANY, *parts])


def marked_text(lark: LarkWriter, special: SpecialTokens, pattern: str, mark: str) -> str:
    """Returns an expression for a text of a pattern, and the mark behind it.

    The characters of a mark are one terminal with the text, which would else take the first of them.
    """
    characters, token = special.split(mark)
    if characters:
        pattern = f"({pattern}) {json.dumps(characters, ensure_ascii=False)}"
    return sequence(lark.terminal(pattern), special.in_lark(token))


def _choices(choices: Any, barred: str) -> str:
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise BadSchema("has a choice that is no string")
    if any(barred in choice for choice in choices):
        raise BadSchema(f"has a choice with {barred!r} in it")
    return "(" + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices) + ")"


def _searched(pattern: Any) -> str:
    """Returns the pattern of the texts in which a regular expression is found: anchors at its ends alone."""
    if not isinstance(pattern, str):
        raise BadSchema("has a pattern that is no string")
    starts, ends = pattern.startswith("^"), re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern) is not None
    inner = pattern[starts : len(pattern) - ends]
    rest = _HARMLESS.sub("", inner)
    if any(mark in rest for mark in "^$") or "\\" in rest or "(?=" in rest or "(?!" in rest:
        raise BadSchema("has a pattern with anchors inside, which cannot be enforced in this format of calls")
    while (smaller := _GROUP.sub("", rest)) != rest:
        rest = smaller
    if "|" in rest and (starts or ends):
        raise BadSchema("has a pattern with an anchor and alternatives: put them in parentheses")
    before, after = "" if starts else r"(.|\n)*", "" if ends else r"(.|\n)*"
    escaped = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", inner)
    return f"/{before}({escaped}){after}/"


class UnquotedValues:
    """Writes values of one notation. quote: stands before and after a string."""

    def __init__(self, lark: LarkWriter, special: SpecialTokens, quote: str, separator: str) -> None:
        self._lark = lark
        self._special = special
        self._quote = quote
        self._marks = special.in_lark(quote)
        self._separator = json.dumps(separator)

    def value(self, schema: dict[str, Any]) -> str:
        """Returns an expression for the values that fit a schema. Raises BadSchema."""
        if "enum" in schema or "const" in schema:
            return self._choice(schema)
        if "anyOf" in schema:
            refuse_others(schema, {"anyOf", *DEFINITIONS} | ANNOTATIONS)
            return one_of(*(self.value(as_schema(each)) for each in schema["anyOf"]))
        kind = schema.get("type")
        if kind is None:
            refuse_others(schema, ANNOTATIONS | set(DEFINITIONS))
            return self._anything()
        if isinstance(kind, list):
            return one_of(*(self.value({**schema, "type": each}) for each in kind))
        if kind not in _TYPES:
            raise BadSchema(f"has the type {kind!r}")
        return self._of_type(kind, schema)

    def _of_type(self, kind: str, schema: dict[str, Any]) -> str:
        if kind == "string":
            pattern = string_pattern(schema, self._quote, padded=True)
            return sequence(self._marks, marked_text(self._lark, self._special, pattern, self._quote))
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            others = schema.get("additionalProperties", True)
            if "properties" not in schema and others is not False:
                return self._any_object(as_schema(others))
            return sequence('"{"', pairs(self._lark, members(schema), self.member, '","'), '"}"')
        refuse_others(schema, _NUMERIC | ANNOTATIONS | set(DEFINITIONS))
        bounds = {key: schema[key] for key in sorted(schema.keys() & _NUMERIC)}
        return "%json " + json.dumps({**bounds, "type": kind, "x-guidance": SPACED})

    def _array(self, schema: dict[str, Any]) -> str:
        refuse_others(schema, _ARRAY)
        item = self._lark.rule(self.value(as_schema(schema.get("items", {}))))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = "," if most is None else f",{most - 1}"
        items = sequence(item, f'("," {item}){{{max(least - 1, 0)}{more}}}')
        return sequence('"["', items if least else optional(items), '"]"')

    def member(self, member: Member) -> str:
        """Returns an expression for one member of an object. Raises BadSchema."""
        if NAME.fullmatch(member.name) is None:
            raise BadSchema(f"has a property {member.name!r}, which cannot be written without quotes")
        return sequence(json.dumps(member.name), self._separator, self.value(member.schema))

    def _choice(self, schema: dict[str, Any]) -> str:
        refuse_others(schema, {"type", "enum", "const", *DEFINITIONS} | ANNOTATIONS)
        choices = [schema["const"]] if "const" in schema else schema["enum"]
        return one_of(*(self._literal(choice) for choice in choices))

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            if self._quote in value:
                raise BadSchema(f"has a choice with {self._quote!r} in it")
            return sequence(self._marks, json.dumps(value, ensure_ascii=False) if value else "", self._marks)
        if isinstance(value, dict | list):
            raise BadSchema("has a choice that is an object or a list")
        return json.dumps(json.dumps(value))

    def any_members(self, schema: dict[str, Any] | None = None) -> str:
        """Returns an expression for members of any names. schema: of their values; None: any scalars. Raises
        BadSchema."""
        value = self.value(schema) if schema else one_of(*self._scalars())
        key = self._lark.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}/")
        pair = self._lark.rule(sequence(key, self._separator, value))
        return f'{pair} ("," {pair})*'

    def _anything(self) -> str:
        """Returns an expression for the values of which a schema says nothing."""
        return one_of(*self._scalars(), self._any_object({}))

    def _scalars(self) -> tuple[str, str]:
        plain = "%json " + json.dumps({"type": ["number", "boolean", "null"], "x-guidance": SPACED})
        return self._of_type("string", {}), plain

    def _any_object(self, schema: dict[str, Any]) -> str:
        return sequence('"{"', optional(self.any_members(schema)), '"}"')


def pairs(lark: LarkWriter, written: Sequence[Member], write: Callable[[Member], str], comma: str) -> str:
    """Returns an expression for members in order, with commas between those that are there; "" for none."""
    first = rest = ""  # what may follow while no member has been written, and once one has
    for member in reversed(written):
        this = lark.rule(write(member))
        begun, more = sequence(this, rest), sequence(comma, this, rest)
        if not member.required:
            begun = one_of(begun, first) if first else optional(begun)
            more = one_of(more, rest) if rest else optional(more)
        first, rest = lark.rule(begun), lark.rule(more)
    return first
