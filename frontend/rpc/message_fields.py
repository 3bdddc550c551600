"""Counts the fields of an encoded message before it is decoded.

A nested message takes two bytes on the wire and some hundred in memory: decoding 14 MiB of empty ones stopped
the event loop for a second and took 750 MiB. No rule on a decoded request can prevent that, since the
whole message is decoded first.
"""

from functools import cache
from typing import Any

MAX_FIELDS = 300_000
"""Fields of a message and of those inside it: an entry for each token of a large vocabulary, and more. A
packed list of numbers is one field."""
MAX_NESTED = 32_768
"""Messages inside a message; requests that pass validation have half as many."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields on the wire. The others are the ends of groups, and have no content of their own."""
_VARINT_BITS = 70
"""Of ten bytes, the longest."""


class _TooMany(Exception):
    pass


def has_too_many_fields(data: bytes, descriptor: Any) -> bool:
    """Returns whether an encoded message has more than MAX_FIELDS fields, or MAX_NESTED messages inside it.

    descriptor: of the message's type. Bytes that are no message end the count; decoding will refuse them.
    Takes 0.05 s for the largest message within the limits, and no more for any other.
    """
    fields_left, nested_left = MAX_FIELDS, MAX_NESTED
    parts = [(0, len(data), descriptor)]
    try:
        while parts:
            start, end, kind = parts.pop()
            found: list[tuple[int, int, Any]] = []
            fields_left = _walk(data, start, end, _nested(kind), found, fields_left, nested_left)
            nested_left -= len(found)
            parts += found
    except _TooMany:
        return True
    except IndexError:
        pass
    return False


def _walk(
    data: bytes,
    place: int,
    end: int,
    nested: dict[int, Any],
    found: list[tuple[int, int, Any]],
    fields_left: int,
    nested_left: int,
) -> int:
    """Adds the places of messages inside the one at place:end to `found`, and returns how many fields are
    left. Raises _TooMany, IndexError. (One loop: a call for each number would take twice the time.)"""
    while place < end:
        fields_left -= 1
        if fields_left < 0 or len(found) > nested_left:
            raise _TooMany
        tag = data[place]
        place += 1
        if tag > 127:
            tag, place = _varint(data, place - 1)
        kind = tag & 7
        if kind == _BYTES:
            size = data[place]
            place += 1
            if size > 127:
                size, place = _varint(data, place - 1)
            if tag >> 3 in nested:
                found.append((place, place + size, nested[tag >> 3]))
            place += size
        elif kind == _VARINT:
            _, behind = _varint(data, place)
            fields_left -= behind - place - 1  # a long number takes as long as several fields
            place = behind
        elif kind == _FIXED64:
            place += 8
        elif kind == _FIXED32:
            place += 4
    return fields_left


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number at a place, and the place behind it. Raises IndexError where there is none."""
    value = shift = 0
    while shift < _VARINT_BITS:
        part = data[place]
        place += 1
        value |= (part & 127) << shift
        if part < 128:
            return value, place
        shift += 7
    raise IndexError


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """Returns the fields of a message type that hold messages, by number: of maps, those of messages only."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None and not _is_flat_map(field.message_type)
    }


def _is_flat_map(kind: Any) -> bool:
    return bool(kind.GetOptions().map_entry) and kind.fields_by_name["value"].message_type is None
