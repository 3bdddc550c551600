"""The calls of an answer, in the model's own format: one of the tools, then its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontend.answers.tables import NUMBER, TEXT, ToolFormat, Writing
from frontend.grammar.calls.arguments import ArgumentsWriter
from frontend.grammar.calls.members import BadSchema
from frontend.grammar.lark import ANY, LarkWriter, optional, sequence, without
from frontend.grammar.special_tokens import SpecialTokens

_NUMBER = "/[0-9]{1,4}/"
_BARE = r"/[^{\[\]\s,;](.|\n)*/"
"""A text that does not look like calls, in formats whose calls are the whole answer."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool. parameters: the schema of its arguments; None: they are any JSON object."""

    name: str
    parameters: dict[str, Any] | None
    path: str
    """The field of the request that has the schema."""


class BadTool(Exception):
    """A tool whose calls cannot be enforced: the field, and why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class CallWriting:
    """Expressions for calls of some tools. Raises BadTool."""

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
            raise BadTool(tool.path, str(problem)) from None
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
