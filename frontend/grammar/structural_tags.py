r"""Structural tags: free text, in which each trigger must continue as one of some structures.

    {"triggers": ["<function="],
     "structures": [{"begin": "<function=add>", "schema": {...}, "end": "</function>"}, ...]}

The Lark grammar has a rule per trigger. A trigger of characters is the end of a lazy lexeme, so that it
cannot be passed over as text; one that is a special token is named:

    start: (tag_0 | tag_1)* TEXT
    tag_0: trigger_0 ("add>" %json {...} "</function>" | ...)
    trigger_0[lazy]: TEXT "<function="
    tag_1: TEXT <tool_call> (...)
    TEXT: /(.|\n)*/
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from frontend.grammar.lark import SPACED, sequence
from frontend.grammar.special_tokens import SpecialTokens

PATH = "structured_output.structural_tag"
MAX_STRUCTURES = 256
_KEYS = {"type", "triggers", "structures"}
_STRUCTURE_KEYS = {"begin", "schema", "end"}


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
