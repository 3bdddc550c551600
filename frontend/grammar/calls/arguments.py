"""The arguments of one call, as their format writes them."""

import json
from typing import Any

from frontend.answers.tables import PairNotation, TagWriting, ToolFormat
from frontend.grammar.calls.members import BadSchema, Member, arguments_schema, members
from frontend.grammar.calls.strings import marked_text, string_pattern
from frontend.grammar.calls.unquoted import NAME, UnquotedValues, pairs
from frontend.grammar.lark import SPACED, LarkWriter, optional, sequence
from frontend.grammar.special_tokens import SpecialTokens

NEW_LINE = r'"\n"'
_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"


class ArgumentsWriter:
    """Writes expressions for the arguments of calls in one format."""

    def __init__(self, lark: LarkWriter, special: SpecialTokens, table: ToolFormat) -> None:
        self._lark = lark
        self._special = special
        self._pairs = table.pairs
        self._tag = table.writing.tag if table.writing is not None else None

    def arguments(self, parameters: dict[str, Any]) -> str:
        """Returns an expression for arguments that fit a tool's schema; "" where there can be none. Raises
        BadSchema."""
        schema = arguments_schema(parameters)
        if self._tag is not None:
            tag = self._tag
            return sequence(*(self._tagged(member, tag) for member in members(schema)))
        if self._pairs is not None:
            return self._paired(members(schema), self._pairs)
        return json_value(schema)

    def anything(self) -> str:
        """Returns an expression for the arguments of a tool whose schema is not enforced."""
        if self._tag is not None:
            tag, key = self._tag, self._lark.terminal(_KEY)
            value = self._string({}, tag)
            begin = sequence(self._special.in_lark(tag.open), key)
            named = self._special.in_lark(tag.named_string or tag.named)
            return f"({sequence(begin, named, value, NEW_LINE)})*"
        if self._pairs is None:
            return json_value({"type": "object"})
        if not self._pairs.escapes:
            values = UnquotedValues(self._lark, self._special, self._pairs.quotes[0], self._pairs.separator)
            return optional(values.any_members())
        pair = sequence(self._lark.terminal(_KEY), json.dumps(self._pairs.separator), json_value({}))
        return f'({pair} (", " {pair})*)?'

    def _tagged(self, member: Member, tag: TagWriting) -> str:
        is_string = member.schema.get("type") == "string"
        named = tag.named_string if is_string and tag.named_string else tag.named
        begin = self._special.in_lark(f"{tag.open}{_checked(member.name)}{named}")
        value = self._string(member.schema, tag) if is_string else self._json(member.schema, tag)
        whole = sequence(begin, value, NEW_LINE)
        return self._lark.rule(whole) if member.required else optional(self._lark.rule(whole))

    def _json(self, schema: dict[str, Any], tag: TagWriting) -> str:
        return sequence(json_value(schema), self._special.in_lark(tag.close))

    def _string(self, schema: dict[str, Any], tag: TagWriting) -> str:
        pattern = string_pattern(schema, tag.close.strip(), padded=tag.close.startswith("\n"))
        return marked_text(self._lark, self._special, pattern, tag.close)

    def _paired(self, written: list[Member], notation: PairNotation) -> str:
        if not notation.escapes:
            values = UnquotedValues(self._lark, self._special, notation.quotes[0], notation.separator)
            return pairs(self._lark, written, values.member, '","')

        def python(member: Member) -> str:
            key = json.dumps(_checked(member.name) + notation.separator)
            kinds = member.schema.keys() - {"description", "title", "default"}
            if kinds == {"type"} and member.schema["type"] == "boolean":
                return sequence(key, '("True" | "False")')
            return sequence(key, json_value(member.schema))

        return pairs(self._lark, written, python, '", "')


def json_value(schema: dict[str, Any]) -> str:
    """Returns an expression for JSON text of a schema."""
    return "%json " + json.dumps({**schema, "x-guidance": SPACED}, ensure_ascii=False)


def _checked(name: str) -> str:
    """Returns an argument's name. Raises BadSchema for one that the format cannot write."""
    if NAME.fullmatch(name) is None:
        raise BadSchema(f"has a property {name!r}, which cannot be written in this model's format of calls")
    return name
