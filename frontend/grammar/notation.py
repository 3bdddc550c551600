r"""Each format of StructuredOutput in llguidance's notation: Lark, or a JSON object for a schema.

Structural tags are free text, in which each trigger must continue as one of some structures:

    {"triggers": ["<function="],
     "structures": [{"begin": "<function=add>", "schema": {...}, "end": "</function>"}, ...]}

Their Lark grammar has a rule per trigger. A trigger of characters is the end of a lazy lexeme, so that it
cannot be passed over as text; one that is a special token is named:

    start: (tag_0 | tag_1)* TEXT
    tag_0: trigger_0 ("add>" %json {...} "</function>" | ...)
    trigger_0[lazy]: TEXT "<function="
    tag_1: TEXT <tool_call> (...)
    TEXT: /(.|\n)*/
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from frontend.errors import InvalidRequest
from frontend.grammar.lark import SPACED, SpecialTokens, sequence
from frontend.validation.json_objects import read_json
from pagewire.v1 import generation_pb2

ROOT = "structured_output"
PATHS = {
    "json_object": f"{ROOT}.json_object",
    "json_schema": f"{ROOT}.json_schema",
    "regex": f"{ROOT}.regex",
    "choice": f"{ROOT}.choice.values",
    "grammar": f"{ROOT}.grammar.text",
    "structural_tag": f"{ROOT}.structural_tag",
}
"""The field that has the text of each format."""
_COMPACT = SPACED | {"item_separator": ",", "key_separator": ":"}
"""Options of JSON grammars. Optional whitespace would let a model go on with spaces forever; a lenient
grammar would ignore keywords."""
MAX_STRUCTURES = 256
_KEYS = {"type", "triggers", "structures"}
_STRUCTURE_KEYS = {"begin", "schema", "end"}

_ASCII_CLASSES = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
"""What llguidance takes them for in a pattern of a JSON schema. In regular expressions it also takes digits
and letters of other scripts."""
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_IN_LARK = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|(?P<regex>/(?:\\.|[^/\\\n])+/)')


def grammar_of(form: generation_pb2.StructuredOutput, special: SpecialTokens) -> str:
    """Returns the grammar of a validated form. Raises InvalidRequest when its text cannot be read."""
    kind = form.WhichOneof("format")
    if kind == "json_object":
        return json_grammar('{"type": "object"}')
    if kind == "json_schema":
        schema = read_json(form.json_schema, PATHS[kind])
        _check_schema(schema, PATHS[kind])
        try:
            return json_grammar(form.json_schema if isinstance(schema, dict) else "{}")
        except ValueError as problem:  # of llguidance's own reader of JSON, which takes less than Python's
            raise InvalidRequest({PATHS[kind]: f"cannot be read: {problem}"}) from None
    if kind == "regex":
        return regex_grammar(_with_ascii_classes(form.regex))
    if kind == "choice":
        choices = " | ".join(json.dumps(value, ensure_ascii=False) for value in form.choice.values)
        return f"start: {choices}\n"
    if kind == "grammar":
        return _context_free(form.grammar)
    document = read_json(form.structural_tag, PATHS["structural_tag"])
    try:
        lark = structural_tags(document, special)
    except BadDocument as problem:
        raise InvalidRequest({PATHS["structural_tag"]: str(problem)}) from None
    for place, structure in enumerate(document["structures"]):
        _check_schema(structure["schema"], PATHS["structural_tag"], f"structures[{place}].schema: ")
    return lark


def json_grammar(schema: str) -> str:
    """Returns the grammar of a JSON schema, without optional whitespace."""
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_COMPACT))  # type: ignore[arg-type]


def regex_grammar(pattern: str) -> str:
    """Returns the grammar of a regular expression in the syntax of Rust's `regex`."""
    return str(LLMatcher.grammar_from_regex(pattern))


def _with_ascii_classes(pattern: str) -> str:
    return _ESCAPE.sub(lambda escape: _ASCII_CLASSES.get(escape[0], escape[0]), pattern)


def _check_schema(schema: Any, path: str, where: str = "") -> None:
    """Raises InvalidRequest for what is no schema. Keywords are judged by llguidance."""
    if schema is False:
        raise InvalidRequest({path: f"{where}false allows nothing"})
    if not isinstance(schema, dict | bool):
        raise InvalidRequest({path: f"{where}is neither an object nor true or false"})
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise InvalidRequest({path: f"{where}has the key x-guidance, which is not supported"})


def _context_free(grammar: generation_pb2.StructuredOutput.Grammar) -> str:
    """Returns a grammar in Lark. Raises InvalidRequest."""
    if grammar.syntax == generation_pb2.StructuredOutput.Grammar.SYNTAX_LARK:
        return _IN_LARK.sub(
            lambda token: _with_ascii_classes(token[0]) if token["regex"] else token[0], grammar.text
        )
    try:
        return gbnf_to_lark(grammar.text)
    except Exception as problem:  # the converter raises plain exceptions, and IndexError for some texts
        raise InvalidRequest({PATHS["grammar"]: f"is no GBNF grammar: {problem}"[:300]}) from None


class BadDocument(Exception):
    """The document is not one of structural tags. Its text says why."""


@dataclass(frozen=True, slots=True)
class Structure:
    """One of the structures that a trigger begins."""

    begin: str
    schema: Any
    end: str


def structural_tags(document: Any, special: SpecialTokens) -> str:
    """Returns the Lark grammar of a document. Raises BadDocument."""
    triggers, structures = _read(document)
    rules = ["start: (" + " | ".join(f"tag_{place}" for place in range(len(triggers))) + ")* TEXT"]
    for place, trigger in enumerate(triggers):
        bodies = [
            _body(structure, trigger, special)
            for structure in structures
            if structure.begin.startswith(trigger)
        ]
        alternatives = " | ".join(bodies)
        if special.first_in(trigger) == trigger:
            rules.append(f"tag_{place}: TEXT {special.in_lark(trigger)} ({alternatives})")
        elif special.occurs_in(trigger):
            raise BadDocument(f"triggers[{place}] mixes a special token with text: the token alone triggers")
        else:
            rules.append(f"tag_{place}: trigger_{place} ({alternatives})")
            rules.append(f"trigger_{place}[lazy]: TEXT {special.in_lark(trigger)}")
    return "\n".join([*rules, r"TEXT: /(.|\n)*/", ""])


def _body(structure: Structure, trigger: str, special: SpecialTokens) -> str:
    """Returns what follows the trigger."""
    rest = special.in_lark(structure.begin[len(trigger) :])
    plain = structure.schema if isinstance(structure.schema, dict) else {}  # true; others are refused
    schema = json.dumps({**plain, "x-guidance": SPACED}, ensure_ascii=False)
    return sequence(rest, f"%json {schema}", special.in_lark(structure.end))


def _read(document: Any) -> tuple[list[str], list[Structure]]:
    """Returns the triggers and structures of a document. Raises BadDocument."""
    if not isinstance(document, dict):
        raise BadDocument("is not an object")
    _check_keys(document, _KEYS, "")
    if document.get("type", "structural_tag") != "structural_tag":
        raise BadDocument('has another "type" than "structural_tag"')
    triggers = document.get("triggers")
    if not isinstance(triggers, list) or not triggers:
        raise BadDocument("triggers must be a list of at least one string")
    for place, trigger in enumerate(triggers):
        if not isinstance(trigger, str) or not trigger:
            raise BadDocument(f"triggers[{place}] must be a string, not empty")
        if any(other != trigger and other.startswith(trigger) for other in map(str, triggers)):
            raise BadDocument(f"triggers[{place}] is the beginning of another trigger")
    if len(set(triggers)) != len(triggers):
        raise BadDocument("triggers must differ")
    structures = list(_structures(document.get("structures")))
    for place, structure in enumerate(structures):
        if not any(structure.begin.startswith(trigger) for trigger in triggers):
            raise BadDocument(f"structures[{place}].begin begins with none of the triggers")
    for place, trigger in enumerate(triggers):
        if not any(structure.begin.startswith(trigger) for structure in structures):
            raise BadDocument(f"triggers[{place}] begins none of the structures")
    return triggers, structures


def _structures(structures: Any) -> Iterator[Structure]:
    if not isinstance(structures, list) or not 1 <= len(structures) <= MAX_STRUCTURES:
        raise BadDocument(f"structures must be a list of 1 to {MAX_STRUCTURES} objects")
    for place, structure in enumerate(structures):
        if not isinstance(structure, dict):
            raise BadDocument(f"structures[{place}] is not an object")
        _check_keys(structure, _STRUCTURE_KEYS, f"structures[{place}]")
        begin, end = structure.get("begin"), structure.get("end", "")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise BadDocument(f"structures[{place}].begin and .end must be strings")
        if "schema" not in structure:
            raise BadDocument(f"structures[{place}].schema is required")
        yield Structure(begin, structure["schema"], end)


def _check_keys(found: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise BadDocument(f"{where or 'the document'} has the key {unknown[0]!r}, which is not supported")
