"""What a tool's schema says of each argument."""

from dataclasses import dataclass
from typing import Any

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
