"""JSON values of request fields, each read into what its protobuf field takes. Pure.

A reader returns the value or raises ValueError, whose text says what the field must be. It also has the JSON
schema of what it takes, for the OpenAPI document.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
NEVER: Json = {"enum": []}
"""JSON schema of a field that is refused whatever it is."""


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Reads a value, or raises ValueError. schema: of the values that it takes."""

    read: Callable[[Any], T]
    schema: Json

    def __call__(self, value: Any) -> T:
        return self.read(value)


def takes(**schema: Any) -> Callable[[Callable[[Any], T]], Reader[T]]:
    """Makes a reader of a function."""
    return lambda read: Reader(read, schema)


MAX_DEPTH = 64
"""Levels of a JSON value inside a request: a schema, or variables of a template. What reads them later
has higher bounds of its own."""

_UINT32, _INT32, _INT64, _UINT64 = (1 << 32) - 1, (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1
_FLOAT32 = 3.4e38


@takes(type="number")
def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _FLOAT32:
        raise ValueError("must be a number")
    return float(value)


def whole(low: int, high: int) -> Reader[int]:
    """Returns the reader of an integer in [low, high]."""

    @takes(type="integer", minimum=low, maximum=high)
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be an integer")
        if not low <= value <= high:
            raise ValueError(f"must be {low} to {high}")
        return value

    return read


count = whole(0, _UINT32)
int32 = whole(-_INT32 - 1, _INT32)


@takes(type="integer")
def seed(value: Any) -> int:
    """An integer of 64 bits, with or without sign; a negative one counts from 2^64 down."""
    number = whole(-_INT64 - 1, _UINT64)(value)
    return number & _UINT64


@takes(type="integer", minimum=-1)
def top_k(value: Any) -> int:
    """A number of candidates; -1 and 0: all."""
    number = whole(-1, _INT32)(value)
    return max(number, 0)


@takes(type="boolean")
def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


@takes(type="string")
def text(value: Any) -> str:
    """A string of Unicode characters."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("has half of a surrogate pair, which is no character") from None
    return value


@takes(anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "string"}}])
def texts(value: Any) -> list[str]:
    """A string, or a list of them."""
    return [text(each) for each in value] if isinstance(value, list) else [text(value)]


@takes(type="array", items={"type": "string"})
def text_list(value: Any) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")
    return [text(each) for each in value]


@takes(type="array", items={"type": "integer", "minimum": 0})
def token_ids(value: Any) -> list[int]:
    """A list of token ids."""
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids")
    return [count(each) for each in value]


@takes(type="object", additionalProperties={"type": "number"})
def logit_bias(value: Any) -> dict[int, float]:
    """An object from token ids, which JSON writes as strings, to numbers."""
    if not isinstance(value, dict):
        raise ValueError("must be an object with token ids as names")
    biases = {}
    for name, bias in value.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10 and int(name) <= _UINT32):
            raise ValueError("must have token ids as names")
        biases[int(name)] = number(bias)
    return biases


@takes(type="object")
def json_object(value: Any) -> dict[str, Any]:
    """An object without half characters."""
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    check_texts(value)
    return value


@takes(type=["object", "string"])
def document(value: Any) -> str | dict[str, Any]:
    """A JSON document: an object, or its text."""
    if not isinstance(value, str | dict):
        raise ValueError("must be an object or its JSON text")
    return text(value) if isinstance(value, str) else json_object(value)


def check_texts(value: Any, depth: int = 0, most: int = MAX_DEPTH) -> None:
    """Raises ValueError when a string inside a JSON value is no Unicode text, a number not finite, or the
    value is nested more than `most` deep."""
    if depth > most:
        raise ValueError(f"is nested more than {most} deep")
    if isinstance(value, str):
        text(value)
    elif isinstance(value, list):
        for each in value:
            check_texts(each, depth + 1, most)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            text(name)
            check_texts(each, depth + 1, most)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("has a number that is too large")


@takes(type="object", additionalProperties={"type": "string"})
def text_map(value: Any) -> dict[str, str]:
    """An object from strings to strings."""
    if not isinstance(value, dict):
        raise ValueError("must be an object with strings")
    return {text(name): text(each) for name, each in value.items()}


def nothing(*allowed: Any) -> Reader[None]:
    """Returns the reader of a field that may only have values that change nothing."""

    @takes(enum=list(allowed))
    def read(value: Any) -> None:
        if not any(isinstance(value, bool) is isinstance(each, bool) and value == each for each in allowed):
            known = " or ".join(map(json.dumps, allowed))
            raise ValueError(f"must be {known} here" if allowed else "is not supported here")

    return read


def refused(why: str) -> Reader[None]:
    """Returns the reader of a field that is not served, which says why."""

    @takes(**NEVER)
    def read(value: Any) -> None:
        raise ValueError(why)

    return read


@takes()
def as_it_is(value: Any) -> Any:
    """Any value, to be read elsewhere."""
    return value


@takes()
def anything(value: Any) -> None:
    """Any value: the field says nothing to the model."""
