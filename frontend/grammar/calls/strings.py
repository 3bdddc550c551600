"""Strings that stand between marks, without JSON's quotes and escapes."""

import json
import re
from typing import Any

from frontend.grammar.calls.members import ANNOTATIONS, DEFINITIONS, BadSchema, refuse_others
from frontend.grammar.lark import ANY, LarkWriter, sequence, without
from frontend.grammar.special_tokens import SpecialTokens

_KEYWORDS = {"type", "enum", "const", "pattern", "minLength", "maxLength", *DEFINITIONS} | ANNOTATIONS
_HARMLESS = re.compile(r"\\[^bBAzZ]|\[\^?\]?(?:\\.|[^\]\\])*\]")
"""In a regular expression: an escaped character, or a class of characters."""
_GROUP = re.compile(r"\((?!\?[^:])[^()]*\)")


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
