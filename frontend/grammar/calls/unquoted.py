"""Values in a notation whose keys have no quotes, and whose strings stand between marks: `{a:[1,"b"]}`."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from frontend.grammar.calls.members import (
    ANNOTATIONS,
    DEFINITIONS,
    BadSchema,
    Member,
    as_schema,
    members,
    refuse_others,
)
from frontend.grammar.calls.strings import marked_text, string_pattern
from frontend.grammar.lark import SPACED, LarkWriter, one_of, optional, sequence
from frontend.grammar.special_tokens import SpecialTokens

NAME = re.compile(r"[\w$][\w$.\-]{0,127}")
"""Names of arguments that need no quotes in any format."""
_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "type"}
_ARRAY = {"type", "items", "minItems", "maxItems", *DEFINITIONS} | ANNOTATIONS
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


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
