"""Reads the header of a GGUF file (metadata, and where each tensor is), and small tensors as numbers.

    magic "GGUF", version, number of tensors, number of metadata entries
    entries: key, type, value            key: 64-bit length and UTF-8; all numbers are little-endian
    tensors: name, dimensions, type, offset behind the header
    the tensors' bytes, from the next multiple of `general.alignment` on

The file is not trusted. Each count is compared with the bytes that are left before anything is allocated, so
that reading takes memory in proportion to the header, which has a limit. Needs neither numpy nor torch.
"""

import mmap
import struct
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError
from pagewire.gguf.tensor_types import F32, REFUSED, TENSOR_TYPES, TensorType

WHAT = "cannot read the GGUF file"
MAX_HEADER_BYTES = 128 << 20
"""Of metadata and tensor infos. A vocabulary of 262,144 tokens with its merges takes about 15 MB."""
MAX_STRINGS = 3 << 19
"""Of such a vocabulary there are 780,000; each takes some 60 bytes beside its text."""
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16
MAX_VALUES = 1 << 48
"""Values of a tensor."""
_DEFAULT_ALIGNMENT = 32
_VERSIONS = (2, 3)
_MAGIC = b"GGUF"

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Type of a metadata value -> its code in struct and array."""
_LEAST_STRING = 8
"""Bytes of an empty string."""


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is. shape: rows before columns, as torch has it; a row is contiguous in the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int  # from the beginning of the file
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, which is the last dimension."""
        return self.shape[-1] // self.type.block_values * self.type.block_bytes


@dataclass(frozen=True)
class Header:
    """The header of a file. Metadata values: int, float, bool, str, array.array, or a list of str or bool."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)


def is_gguf(path: Path) -> bool:
    """True if a path names a GGUF file rather than a folder."""
    return path.suffix.lower() == ".gguf"


def read_header(path: Path) -> Header:
    """Reads the header of a file. Raises StartupError."""
    if not path.is_file():  # opening a FIFO would block
        raise StartupError(WHAT, f"{path} is not a file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return parse_header(path, content)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise StartupError(WHAT, f"{path}: {error}") from error


def parse_header(path: Path, content: bytes | mmap.mmap) -> Header:
    """Reads the header of a file from its content. path: for messages. Raises StartupError."""
    return _HeaderReader(path, content).read()


class _HeaderReader:
    """A position in a file, and what has been read up to there."""

    def __init__(self, path: Path, content: bytes | mmap.mmap) -> None:
        self._path, self._content = path, content
        self._size = len(content)
        self._end = min(self._size, MAX_HEADER_BYTES)
        self._at = self._num_strings = 0

    def read(self) -> Header:
        """Reads everything up to the tensors' bytes."""
        if self._take(4) != _MAGIC:
            raise self._damaged("it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            big_endian = version > 0xFFFF
            why = "its numbers are big-endian" if big_endian else f"its version is {version}"
            raise StartupError(WHAT, f"{self._path}: {why}; versions 2 and 3 in little-endian are read")
        num_tensors, num_entries = self._number("Q"), self._number("Q")
        metadata = self._read_metadata(num_entries)
        if metadata.get("split.count", 0) not in (0, 1):
            raise StartupError(
                WHAT,
                f"{self._path} is one of several parts (split.count)",
                "merge them: llama-gguf-split --merge FIRST_PART OUTPUT",
            )
        return Header(self._path, metadata, self._read_tensors(num_tensors, metadata))

    def _read_metadata(self, count: int) -> dict[str, Any]:
        self._check_count(count, _LEAST_STRING + 4 + 1, "metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"metadata key {key!r} is there twice")
            metadata[key] = self._value(self._number("I"), key)
        return metadata

    def _read_tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        self._check_count(count, _LEAST_STRING + 4 + 8 + 4 + 8, "tensors")
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        found = [self._read_tensor() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, tensor_type, offset in found:
            num_values = 1
            for size in shape:
                num_values *= size
            num_bytes = num_values // tensor_type.block_values * tensor_type.block_bytes
            if name in tensors:
                raise self._damaged(f"tensor {name!r} is there twice")
            if offset % alignment:
                raise self._damaged(f"tensor {name!r} is not at a multiple of {alignment} bytes")
            if start + offset + num_bytes > self._size:
                raise StartupError(
                    WHAT,
                    f"{self._path}: tensor {name!r} ends at byte {start + offset + num_bytes}, "
                    f"but the file has {self._size}",
                    "the file is truncated: download or copy it again",
                )
            tensors[name] = TensorInfo(name, shape, tensor_type, start + offset, num_bytes)
        return tensors

    def _read_tensor(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self._string()
        dimensions = self._number("I")
        if not 0 < dimensions <= MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        if number not in TENSOR_TYPES:
            kind = REFUSED.get(number, f"of type {number}, which is not known")
            known = ", ".join(each.name for each in TENSOR_TYPES.values())
            raise StartupError(WHAT, f"{self._path}: tensor {name!r} is {kind}", f"these are read: {known}")
        tensor_type = TENSOR_TYPES[number]
        values = 1
        for size in shape:
            values *= size
            if not size > 0 or values > MAX_VALUES:
                raise self._damaged(f"tensor {name!r} has shape {list(shape)}")
        if shape[-1] % tensor_type.block_values:
            raise self._damaged(
                f"tensor {name!r} is {tensor_type.name}, whose rows are multiples of "
                f"{tensor_type.block_values} values, and has shape {list(shape)}"
            )
        return name, shape, tensor_type, offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._damaged(f"metadata {key!r} has a value of type {kind}")
        value = self._number(_SCALARS[kind])
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._check_count(count, _LEAST_STRING, f"strings of {key!r}")
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self._damaged(f"metadata {key!r} is an array of type {kind}")
        code = _SCALARS[kind]
        size = struct.calcsize("<" + code)
        self._check_count(count, size, f"values of {key!r}")
        values = array(code if array(code).itemsize == size else "L")
        values.frombytes(self._take(count * size))
        return values

    def _string(self) -> str:
        self._num_strings += 1
        if self._num_strings > MAX_STRINGS:
            raise self._damaged(f"it has more than {MAX_STRINGS} strings")
        length = self._number("Q")
        self._check_count(length, 1, "bytes of a string")
        # A vocabulary may hold pieces of characters: they are read, and compare like any other text.
        return self._take(length).decode("utf-8", "surrogateescape")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        return value

    def _check_count(self, count: int, least_bytes: int, what: str) -> None:
        if count * least_bytes > self._end - self._at:
            raise self._damaged(f"it announces {count} {what}, more than it has bytes for")

    def _take(self, count: int) -> bytes:
        if self._at + count > self._end:
            raise self._damaged("it ends within its header")
        piece = self._content[self._at : self._at + count]
        self._at += count
        return piece

    def _damaged(self, why: str) -> StartupError:
        return StartupError(WHAT, f"{self._path} is damaged: {why}", "download or copy the file again")


MOST_VALUES = 1 << 16


def read_floats(header: Header, name: str) -> list[float]:
    """Returns the values of a tensor of type F32. Raises StartupError."""
    info = header.tensors[name]
    if info.type != F32 or info.num_bytes > MOST_VALUES * F32.block_bytes:
        raise StartupError(
            WHAT, f"{header.path}: tensor {name!r} must be F32 with at most {MOST_VALUES} values"
        )
    try:
        with header.path.open("rb") as file:
            file.seek(info.offset)
            return list(array("f", file.read(info.num_bytes)))
    except (OSError, ValueError) as error:
        raise StartupError(WHAT, f"{header.path}: {error}") from error
