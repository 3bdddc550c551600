"""One row for every field of every public message: type, range, default, and where it is judged.

docs/limits.md is printed from them (scripts/limits_page.py). A field that field_tables.py does not know is an
error, so that a new field of the protos needs a rule.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from frontend.validation.fields import Kind
from frontend.validation.rules import Rule
from pagewire.v1 import admin_pb2, generation_pb2, model_pb2, pooling_pb2, tokenizer_pb2
from scripts.limits.field_tables import (
    DEFAULTS,
    NOT_BUILT,
    REFUSED_FIELDS,
    REQUEST_DEFAULTS,
    REQUESTS,
    TABLE,
    VALIDATION,
    Entry,
)

MODULES = (generation_pb2, tokenizer_pb2, pooling_pb2, model_pb2, admin_pb2)


@dataclass(frozen=True, slots=True)
class Row:
    """One field, as people see it."""

    message: str
    path: str
    type: str
    range: str
    default: str
    where: str


class NoRow(Exception):
    """A field without a rule."""


_RANGES = {
    FieldDescriptor.TYPE_BOOL: "true, false",
    FieldDescriptor.TYPE_UINT32: "0 to 2^32 - 1",
    FieldDescriptor.TYPE_INT32: "-2^31 to 2^31 - 1",
    FieldDescriptor.TYPE_UINT64: "0 to 2^64 - 1",
    FieldDescriptor.TYPE_FLOAT: "any",
    FieldDescriptor.TYPE_DOUBLE: "any",
    FieldDescriptor.TYPE_STRING: "any",
    FieldDescriptor.TYPE_BYTES: "any",
    FieldDescriptor.TYPE_ENUM: "a value with a name",
    FieldDescriptor.TYPE_MESSAGE: "see below",
}
_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}
_ZEROS = {
    FieldDescriptor.TYPE_BOOL: "false",
    FieldDescriptor.TYPE_STRING: "empty",
    FieldDescriptor.TYPE_BYTES: "empty",
    FieldDescriptor.TYPE_MESSAGE: "absent",
    FieldDescriptor.TYPE_ENUM: "UNSPECIFIED",
}


def request_rows(name: str) -> list[Row]:
    """Rows of a request, its nested messages in place. Raises NoRow."""
    descriptor = _requests()[name]
    if name in NOT_BUILT:
        return [
            Row(name, field.name, type_of(field), "refused", "", NOT_BUILT[name])
            for field in descriptor.fields
        ]
    table = REQUESTS.get(name)
    if table is None:
        raise NoRow(f"{name} has no entry in REQUESTS of scripts/limits/field_tables.py")
    rows = list(_walk(name, descriptor, "", table))
    if unknown := table.keys() - {row.path for row in rows}:
        raise NoRow(f"{name} has no field {', '.join(sorted(unknown))}")
    return rows


def answer_rows() -> Iterator[Row]:
    """Rows of all messages that only servers send."""
    asked = {inner.full_name for outer in _requests().values() for inner in _inside(outer)}
    for name, descriptor in _answers().items():
        if descriptor.full_name not in asked:
            for field in descriptor.fields:
                kind = "see its own rows" if _is_ours(field) else _RANGES[field.type]
                yield Row(name, field.name, type_of(field), kind, _zero(field), "set by the server")


def requests() -> list[str]:
    """Names of all requests, service by service; those that are not built are in NOT_BUILT."""
    return list(_requests())


def all_rows() -> Iterator[Row]:
    """Everything: requests by service, then answers. Raises NoRow."""
    for name in requests():
        yield from request_rows(name)
    yield from answer_rows()


def type_of(field: FieldDescriptor) -> str:
    """As in the .proto file."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return f"map<{type_of(key)}, {type_of(value)}>"
    kind = field.message_type or field.enum_type
    name = kind.name if kind is not None else _NAMES[field.type]
    return f"repeated {name}" if field.is_repeated else name


def _walk(message: str, descriptor: Descriptor, above: str, table: Mapping[str, Entry]) -> Iterator[Row]:
    for field in descriptor.fields:
        path = f"{above}.{field.name}" if above else field.name
        entry = table.get(path)
        if entry is None:
            if _of_prompt(path) not in REFUSED_FIELDS:
                raise NoRow(f"{message}.{path}: a field without a rule")
            yield Row(message, path, type_of(field), "refused", "", f"{VALIDATION}: FEATURE_UNSUPPORTED")
            continue
        yield Row(message, path, type_of(field), *_judgement(message, path, field, entry))
        if any(other.startswith(f"{path}.") for other in table):
            assert field.message_type is not None
            yield from _walk(message, field.message_type, path, table)


def _judgement(message: str, path: str, field: FieldDescriptor, entry: Entry) -> tuple[str, str, str]:
    """(range, default, where)"""
    default = REQUEST_DEFAULTS.get(f"{message}.{path}") or DEFAULTS.get(_of_prompt(path))
    if isinstance(entry, Kind):
        return (
            _RANGES[field.type],
            default or _zero(field),
            "every value is fine" if entry is Kind.FREE else "",
        )
    where = TABLE if isinstance(entry, Rule) else entry.where
    return entry.range, default or _zero(field), where


def _of_prompt(path: str) -> str:
    """The path of the same field of a GenerateRequest's prompt."""
    for name in ("prompts.", "inputs.", "query.", "documents."):
        path = path.replace(name, "prompt.")
    return path


def _zero(field: FieldDescriptor) -> str:
    return "none" if field.is_repeated else _ZEROS.get(field.type, "0")


def _is_ours(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.file.package == "pagewire.v1" and not kind.GetOptions().map_entry


@cache
def _requests() -> dict[str, Descriptor]:
    return {method.input_type.name: method.input_type for method in _methods()}


@cache
def _answers() -> dict[str, Descriptor]:
    """Every message that an RPC answers with, and those inside, by name within the package."""
    return {
        inner.full_name.removeprefix("pagewire.v1."): inner
        for method in _methods()
        for inner in _inside(method.output_type)
    }


def _methods() -> Iterator[Any]:
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def _inside(descriptor: Descriptor) -> Iterator[Descriptor]:
    """The message, and those inside it, each once."""
    seen, todo = set(), [descriptor]
    while todo:
        message = todo.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        yield message
        todo += [
            kind for field in reversed(message.fields) if _is_ours(field) and (kind := field.message_type)
        ]
