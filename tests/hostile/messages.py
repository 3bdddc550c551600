"""Messages of any content, from their descriptors: what a client may send beyond what our clients do."""

import math
import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DEEPEST = 6
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 1e-45, 1e-6, 1e38, math.inf, -math.inf, math.nan)
STRINGS = (
    "",
    "a",
    "hello world",
    "é\u200d🙂",
    "\x00",
    "\ud7ff\ue000",
    "x" * 300,
    "user",
    "{{ 1/0 }}",
    "<|end|>",
    "\n",
)
BYTES = (b"", b"\x00", b"\xff" * 7, bytes(range(256)))


def any_message(descriptor: Descriptor, draw: random.Random, depth: int = 0) -> Message:
    """A message with some of its fields set, each to something odd or ordinary."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if draw.random() < (0.35 if depth < 2 else 0.25):
            _fill(message, field, draw, depth)
    return message


def _fill(message: Message, field: FieldDescriptor, draw: random.Random, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _fill_map(message, field, draw, depth)
    elif field.is_repeated:
        count = draw.choice((1, 2, 5))
        for _ in range(count if depth < DEEPEST else 0):
            _add(getattr(message, field.name), field, draw, depth)
    elif field.message_type is not None:
        if depth < DEEPEST:
            getattr(message, field.name).CopyFrom(any_message(field.message_type, draw, depth + 1))
    else:
        setattr(message, field.name, _scalar(field, draw))


def _fill_map(message: Message, field: FieldDescriptor, draw: random.Random, depth: int) -> None:
    entry = field.message_type
    assert entry is not None
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(draw.choice((1, 3))):
        if value.message_type is None:
            getattr(message, field.name)[_scalar(key, draw)] = _scalar(value, draw)
        elif depth < DEEPEST:
            inner = any_message(value.message_type, draw, depth + 1)
            getattr(message, field.name)[_scalar(key, draw)].CopyFrom(inner)


def _add(values: Any, field: FieldDescriptor, draw: random.Random, depth: int) -> None:
    if field.message_type is not None:
        values.add().CopyFrom(any_message(field.message_type, draw, depth + 1))
    else:
        values.append(_scalar(field, draw))


def _scalar(field: FieldDescriptor, draw: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return draw.choice(BYTES if field.type == FieldDescriptor.TYPE_BYTES else STRINGS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice((0, 1, 2, 3, 99))
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    top = 1 << (bits - signed)
    ordinary = (0, 1, 2, 3, 7, 100, top - 1, top // 2)
    return draw.choice((*ordinary, -1, -top) if signed else ordinary)


def damage(data: bytes, draw: random.Random) -> bytes:
    """The same bytes with a few changes: flipped, cut, repeated, inserted, or lengths that lie."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(content) + 1)
        kind = draw.randrange(6)
        if kind == 0 and content:
            content[place % len(content)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[place:]
        elif kind == 2:
            content[place:place] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 3:
            content[place:place] = content[:place][-20:]
        elif kind == 4 and content:
            content[place % len(content)] = draw.choice((0, 0x7F, 0x80, 0xFF))
        else:
            content[place:place] = b"\xff\xff\xff\xff\x0f"
    return bytes(content)
