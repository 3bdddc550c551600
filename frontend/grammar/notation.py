"""Each format of StructuredOutput in llguidance's notation: Lark, or a JSON object for a schema."""

import json
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from frontend.errors import InvalidRequest
from frontend.grammar.special_tokens import SpecialTokens
from frontend.grammar.structural_tags import BadDocument, structural_tags
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
_COMPACT = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}
"""Options of JSON grammars. Optional whitespace would let a model go on with spaces forever; a lenient
grammar would ignore keywords."""

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


def read_json(text: str, path: str) -> Any:
    """Returns a JSON document. Raises InvalidRequest, with line and column."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}"
        raise InvalidRequest({path: f"is not JSON: {problem.msg} at {where}"}) from None
    except RecursionError:
        raise InvalidRequest({path: "is nested too deeply"}) from None
    except ValueError as problem:
        raise InvalidRequest({path: f"is not JSON: {problem}"}) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


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
