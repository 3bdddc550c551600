"""Tensors of the Open Inference Protocol: the elements of those that come, and the bytes of those that go."""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from frontend.errors import InvalidRequest, Unsupported
from pagewire_gateways.protos import open_inference_pb2 as oip

TEXT, INTEGER, NUMBER, BOOLEAN = "BYTES", "an integer", "a number", "BOOL"
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 20
"""Of a tensor. The product of many sizes is a number of many digits, and elements are many objects."""
FORMATS = {
    "BOOL": ("?", BOOLEAN, "bool_contents"),
    "INT8": ("b", INTEGER, "int_contents"),
    "INT16": ("h", INTEGER, "int_contents"),
    "INT32": ("i", INTEGER, "int_contents"),
    "INT64": ("q", INTEGER, "int64_contents"),
    "UINT8": ("B", INTEGER, "uint_contents"),
    "UINT16": ("H", INTEGER, "uint_contents"),
    "UINT32": ("I", INTEGER, "uint_contents"),
    "UINT64": ("Q", INTEGER, "uint64_contents"),
    "FP32": ("f", NUMBER, "fp32_contents"),
    "FP64": ("d", NUMBER, "fp64_contents"),
    "BYTES": ("", TEXT, "bytes_contents"),
}
"""Element type -> its code in struct, what it holds, and its field of InferTensorContents."""
_LENGTH = struct.Struct("<I")


def read_tensors(message: oip.ModelInferRequest) -> Iterator[tuple[str, list[Any]]]:
    """Yields the elements of each tensor. Raises InvalidRequest, Unsupported."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest({"raw_input_contents": "must have an entry for each tensor"})
    seen: set[str] = set()
    for place, tensor in enumerate(message.inputs):
        name = tensor.name if tensor.name.isidentifier() and len(tensor.name) <= 64 else f"inputs[{place}]"
        if tensor.name in seen:
            raise InvalidRequest({name: "is there twice"})
        seen.add(tensor.name)
        if tensor.parameters:
            raise Unsupported({name: "has parameters, which are not served (no shared memory)"})
        if tensor.datatype not in FORMATS:
            raise Unsupported({name: f"must have a datatype among {', '.join(FORMATS)}"})
        code, kind, field = FORMATS[tensor.datatype]
        count = _num_elements(tensor, name)
        values: Sequence[Any] = getattr(tensor.contents, field)
        if raw and kind == TEXT:
            values = _unpack_texts(raw[place], name, count)
        elif raw:
            layout = struct.Struct(f"<{count}{code}")
            if layout.size != len(raw[place]):
                raise InvalidRequest({name: f"must have {layout.size} bytes, as its shape says"})
            values = layout.unpack(raw[place])
        if len(values) != count:
            raise InvalidRequest({name: f"must have {count} elements, as its shape says"})
        yield name, [_text(value, name) for value in values] if kind == TEXT else list(values)


def _num_elements(tensor: oip.ModelInferRequest.InferInputTensor, name: str) -> int:
    """Returns the number of elements by the shape. Raises InvalidRequest."""
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise InvalidRequest({name: f"must have at most {MAX_DIMENSIONS} dimensions"})
    count = math.prod(tensor.shape)
    if any(size < 0 for size in tensor.shape) or count > MAX_ELEMENTS:
        raise InvalidRequest({name: f"must have a shape of 0 to {MAX_ELEMENTS} elements"})
    return count


def _unpack_texts(data: bytes, name: str, count: int) -> list[bytes]:
    """Returns the elements, no more than one above `count`. Raises InvalidRequest."""
    texts: list[bytes] = []
    start = 0
    while start < len(data) and len(texts) <= count:
        if start + 4 > len(data):
            raise InvalidRequest({name: "ends within the length of an element"})
        (length,) = _LENGTH.unpack_from(data, start)
        start += 4 + length
        if start > len(data):
            raise InvalidRequest({name: "ends within an element"})
        texts.append(data[start - length : start])
    return texts


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest({name: "is not UTF-8"}) from None


def holds(datatype: str, value: Any) -> bool:
    """Whether a value may be an element of a tensor of this type."""
    kind = FORMATS[datatype][1]
    if kind == BOOLEAN or isinstance(value, bool):
        return kind == BOOLEAN and isinstance(value, bool)
    return isinstance(value, {TEXT: str, INTEGER: int, NUMBER: int | float}[kind])


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Returns the elements [N] as raw contents."""
    if datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(value)) + value for value in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype][0]}", *values)
