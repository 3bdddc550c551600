"""Forms of outputs: pydantic models, dataclasses and JSON schemas in, StructuredOutput messages and objects
out."""

import dataclasses
import enum
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Protocol,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from pagewire.v1.generation_pb2 import StructuredOutput

Parser = Callable[[str], Any]
"""Makes an object of a complete output."""


@runtime_checkable
class Model(Protocol):
    """What is used of a class derived from pydantic.BaseModel."""

    def model_json_schema(self) -> dict[str, Any]:
        """Returns the model's JSON schema."""

    def model_validate_json(self, json_data: str) -> Any:
        """Makes an object of JSON."""


Schema = type | Mapping[str, Any] | str
"""A pydantic model, a dataclass, or a JSON schema as a mapping or as text."""


def schema_text(schema: Schema) -> str:
    """Returns a JSON schema as text. Raises TypeError for what is none of type Schema.

    Objects of models and dataclasses have no other keys than their fields.
    """
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type):
        if isinstance(schema, Model):
            return json.dumps(_closed(schema.model_json_schema()))
        if dataclasses.is_dataclass(schema):
            try:
                return json.dumps(_schema_of(schema, schema.__name__))
            except RecursionError:
                raise TypeError(f"{schema.__name__} refers to itself; a pydantic model may") from None
    elif isinstance(schema, Mapping):
        return json.dumps(dict(schema))
    raise TypeError(f"a schema is a pydantic model, a dataclass, a mapping or a text, not {schema!r}")


def parser_of(schema: Schema) -> Parser:
    """Returns what makes objects of outputs with this schema: of its class, or of JSON's own types."""
    if isinstance(schema, type):
        if isinstance(schema, Model):
            return schema.model_validate_json
        return lambda text: _made(schema, json.loads(text))
    return cast(Parser, json.loads)


def structured_output(
    *,
    schema: Schema | None,
    json_object: bool,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: str | None,
    lark: str | None,
    structural_tag: Mapping[str, Any] | str | None,
) -> StructuredOutput | None:
    """Returns the message; None: no form is requested. Raises ValueError for more than one."""
    given = {
        "schema": schema is not None,
        "json_object": json_object,
        "regex": regex is not None,
        "choice": choice is not None,
        "grammar": grammar is not None,
        "lark": lark is not None,
        "structural_tag": structural_tag is not None,
    }
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ValueError(f"an output has one form: {' and '.join(names)} cannot be combined")
    form = StructuredOutput()
    if schema is not None:
        form.json_schema = schema_text(schema)
    elif json_object:
        form.json_object = True
    elif regex is not None:
        form.regex = regex
    elif choice is not None:
        form.choice.SetInParent()  # also without values, which the service refuses
        form.choice.values.extend(choice)
    elif grammar is not None:
        form.grammar.text, form.grammar.syntax = grammar, StructuredOutput.Grammar.SYNTAX_EBNF
    elif lark is not None:
        form.grammar.text, form.grammar.syntax = lark, StructuredOutput.Grammar.SYNTAX_LARK
    elif structural_tag is not None:
        form.structural_tag = (
            structural_tag if isinstance(structural_tag, str) else json.dumps(dict(structural_tag))
        )
    return form if names else None


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def _schema_of(kind: Any, where: str) -> dict[str, Any]:
    """Returns the schema of an annotation. where: what it annotates, for errors. Raises TypeError."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(each, where) for each in arguments]}
    if origin is list or kind is list:
        return {"type": "array", "items": _schema_of(arguments[0], f"{where}[]") if arguments else {}}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], f"{where}[]")}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        return {
            "type": "object",
            "properties": {
                field.name: _schema_of(hints[field.name], f"{where}.{field.name}") for field in fields
            },
            "required": [field.name for field in fields if not _has_default(field)],
            "additionalProperties": False,
        }
    raise TypeError(f"{where}: {kind!r} has no JSON schema; a pydantic model may have one")


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _made(kind: Any, value: Any) -> Any:
    """Makes an object of an annotation's type of JSON that has its schema."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _made(next(each for each in arguments if _fits(each, value)), value)
    if origin is list and arguments:
        return [_made(arguments[0], each) for each in value]
    if origin is dict:
        return {key: _made(arguments[1], each) for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return cast(Any, kind)(**{name: _made(hints[name], each) for name, each in value.items()})
    return float(value) if kind is float else value


def _fits(kind: Any, value: Any) -> bool:
    """Returns whether JSON can be of an annotation's type."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return value in [member.value for member in kind]
    if dataclasses.is_dataclass(kind):
        needed = {field.name for field in dataclasses.fields(kind) if not _has_default(field)}
        known = {field.name for field in dataclasses.fields(kind)}
        return isinstance(value, dict) and needed <= value.keys() <= known
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return kind is Any or isinstance(value, origin or kind)


def _closed(schema: Any) -> Any:
    """Returns a schema whose objects allow no other keys than their properties, where it does not say."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(each) for key, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
