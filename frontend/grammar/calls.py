"""The grammar of calls in the model's own format: one of the tools, then its arguments."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontend.answers.tables import NUMBER, TEXT, PairNotation, TagWriting, ToolFormat, Writing
from frontend.errors import InvalidRequest
from frontend.grammar.argument_values import (
    NAME,
    BadSchema,
    Member,
    UnquotedValues,
    arguments_schema,
    marked_text,
    members,
    pairs,
    string_pattern,
)
from frontend.grammar.lark import ANY, SPACED, LarkWriter, SpecialTokens, optional, sequence, without

_NEW_LINE = r'"\n"'
_NUMBER = "/[0-9]{1,4}/"
_BARE = r"/[^{\[\]\s,;](.|\n)*/"
"""A text that does not look like calls, in formats whose calls are the whole answer."""
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
            return f"({sequence(begin, named, value, _NEW_LINE)})*"
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
        whole = sequence(begin, value, _NEW_LINE)
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


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool. parameters: the schema of its arguments; None: they are any JSON object."""

    name: str
    parameters: dict[str, Any] | None
    path: str
    """The field of the request that has the schema."""


class CallWriting:
    """Expressions for calls of some tools. Raises InvalidRequest for tools whose calls cannot be enforced."""

    def __init__(
        self,
        lark: LarkWriter,
        special: SpecialTokens,
        table: ToolFormat,
        writing: Writing,
        tools: Sequence[CallableTool],
        *,
        many: bool,
    ) -> None:
        """many: several calls may follow one another."""
        self._lark = lark
        self._special = special
        self._table = table
        self._writing = writing
        self._many = many and not writing.once
        arguments = ArgumentsWriter(lark, special, table)
        self._named = lark.rule(" | ".join(self._call(tool, arguments) for tool in tools))

    def calls(self) -> str:
        """Returns an expression for at least one call."""
        return self._calls(self._writing.begin, self._writing.before)

    def within_text(self) -> str:
        """Returns an expression for text, which calls may follow. No text looks like a call."""
        lark, opening = self._lark, self._writing.begin + self._writing.before
        trigger = next((mark for mark in self._table.opens if opening.startswith(mark)), None)
        if trigger is None or self._table.start != TEXT:
            return f"({self.calls()} | {lark.terminal(self._text(_BARE))})?"
        text = lark.terminal(self._text(ANY))
        token = self._special.first_in(trigger)
        calls = self._calls(*_after(token or trigger, self._writing))
        if token is not None:
            return sequence(optional(text), optional(sequence(self._special.in_lark(token), calls)))
        lazy = lark.rule(f"{ANY} {self._special.in_lark(trigger)}", "[lazy]")
        return f"({sequence(lazy, calls)} | {text})?"

    def _text(self, pattern: str) -> str:
        """Returns a pattern of texts without marks that begin calls."""
        marks = [mark for mark in self._table.opens if not self._special.occurs_in(mark)]
        return " & ".join([pattern, *map(without, marks)])

    def _calls(self, begin: str, before: str) -> str:
        writing = self._writing
        first = sequence(self._spelled(begin), self._spelled(before), self._named)
        end = self._spelled(writing.end)
        if not self._many:
            return sequence(first, end)
        another = sequence(self._spelled(writing.between), self._spelled(writing.before), self._named)
        return sequence(first, f"({another})*", end)

    def _call(self, tool: CallableTool, arguments: ArgumentsWriter) -> str:
        """Returns an expression for a call from its name on."""
        try:
            given = arguments.anything() if tool.parameters is None else arguments.arguments(tool.parameters)
        except BadSchema as problem:
            raise InvalidRequest({tool.path: str(problem)}) from None
        return sequence(
            self._spelled(tool.name + self._writing.behind), given, self._spelled(self._writing.after)
        )

    def _spelled(self, text: str) -> str:
        parts = [self._special.in_lark(part) for part in text.split(NUMBER)]
        return sequence(parts[0], *(sequence(_NUMBER, part) for part in parts[1:]))


def _after(trigger: str, writing: Writing) -> tuple[str, str]:
    """Returns what a format writes before its first call, and before the name, behind the trigger."""
    if writing.begin:
        return writing.begin.removeprefix(trigger), writing.before
    return "", writing.before.removeprefix(trigger)
