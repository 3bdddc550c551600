"""The header of a GGUF file: what it holds, and one clear line for each that means harm."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.errors import StartupError
from pagewire.gguf import header
from pagewire.gguf.header import read_floats, read_header


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = b"".join(struct.pack("<Q", size) for size in shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def head(version: int = 3, tensors: int = 0, entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


ENTRIES = (
    entry("general.architecture", 8, text("llama")),
    entry("a.bool", 7, b"\1"),
    entry("a.float", 6, struct.pack("<f", 0.5)),
    entry("a.long", 11, struct.pack("<q", -(2**40))),
    entry("a.numbers", 9, struct.pack("<IQ3i", 5, 3, 7, -8, 9)),
    entry("a.texts", 9, struct.pack("<IQ", 8, 2) + text("x") + text("ä")),
)
TENSORS = tensor("one", (3,), 0, 0) + tensor("two", (32, 2), 8, 32)


def whole() -> bytes:
    content = head(3, 2, len(ENTRIES)) + b"".join(ENTRIES) + TENSORS
    content += bytes(-len(content) % 32)
    return content + struct.pack("<3f", 1.0, 2.0, 3.0) + bytes(20) + bytes(range(68))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return to


def test_all_kinds_of_values_and_where_tensors_are(write: Callable[[bytes], Path]):
    path = write(whole())
    header = read_header(path)
    numbers = header.metadata.pop("a.numbers")
    assert list(numbers) == [7, -8, 9]
    assert header.metadata == {
        "general.architecture": "llama",
        "a.bool": True,
        "a.float": 0.5,
        "a.long": -(2**40),
        "a.texts": ["x", "ä"],
    }
    one, two = header.tensors["one"], header.tensors["two"]
    assert (one.shape, one.type.name, one.num_bytes) == ((3,), "F32", 12)
    assert (two.shape, two.type.name, two.num_bytes, two.row_bytes) == ((2, 32), "Q8_0", 68, 34)
    assert path.read_bytes()[two.offset :] == bytes(range(68))
    assert read_floats(header, "one") == [1.0, 2.0, 3.0]


HUGE = 2**64 - 1
HARMFUL = {
    "an empty file": (b"", "empty"),
    "something else": (b"PK\3\4" + bytes(40), "does not begin with GGUF"),
    "another version": (head(1), "its version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "a count of tensors": (head(3, HUGE) + bytes(100), f"announces {HUGE} tensors"),
    "a count of entries": (head(3, 0, 2**40) + bytes(100), f"announces {2**40} metadata"),
    "the length of a key": (head(3, 0, 1) + struct.pack("<Q", HUGE) + bytes(40), "bytes of a string"),
    "the length of an array": (
        head(3, 0, 1) + entry("k", 9, struct.pack("<IQ", 4, HUGE)),
        f"announces {HUGE} values",
    ),
    "strings of an array": (
        head(3, 0, 1) + entry("k", 9, struct.pack("<IQ", 8, 2**60)),
        f"announces {2**60} strings",
    ),
    "arrays of arrays": (head(3, 0, 1) + entry("k", 9, struct.pack("<IQ", 9, 1) + bytes(40)), "of type 9"),
    "a type of value": (head(3, 0, 1) + entry("k", 99, bytes(40)), "of type 99"),
    "a key twice": (head(3, 0, 2) + entry("k", 7, b"\1") * 2, "'k' is there twice"),
    "alignment": (
        head(3, 0, 1) + entry("general.alignment", 4, struct.pack("<I", 24)),
        "general.alignment is 24",
    ),
    "no dimensions": (head(3, 1) + tensor("t", (), 0, 0) + bytes(40), "0 dimensions"),
    "five dimensions": (head(3, 1) + tensor("t", (1,) * 5, 0, 0) + bytes(40), "5 dimensions"),
    "a dimension of nothing": (head(3, 1) + tensor("t", (4, 0), 0, 0) + bytes(40), "has shape [0, 4]"),
    "a product beyond 64 bits": (head(3, 1) + tensor("t", (2**40, 2**40), 0, 0), "has shape"),
    "half a block": (head(3, 1) + tensor("t", (33,), 2, 0) + bytes(99), "rows are multiples of 32"),
    "an odd offset": (head(3, 1) + tensor("t", (1,), 0, 7) + bytes(99), "not at a multiple of 32"),
    "an offset outside": (head(3, 1) + tensor("t", (1,), 0, 2**63) + bytes(99), "truncated"),
    "a type of tensor": (head(3, 1) + tensor("t", (1,), 4242, 0) + bytes(99), "of type 4242"),
    "a type without a reader": (head(3, 1) + tensor("t", (256,), 15, 0) + bytes(99), "is Q8_K"),
    "a tensor twice": (head(3, 2) + tensor("t", (1,), 0, 0) * 2 + bytes(99), "'t' is there twice"),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_a_harmful_file_is_refused_by_name(harm: str, write: Callable[[bytes], Path]):
    content, why = HARMFUL[harm]
    with pytest.raises(StartupError) as caught:
        read_header(write(content))
    line = f"{caught.value} {caught.value.todo}"
    assert why in line and len(line) < 3000 and line.isprintable()


def test_a_vocabulary_of_a_hostile_size(write: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch):
    """An empty string has 8 bytes in the file, and more in memory."""
    monkeypatch.setattr(header, "MAX_STRINGS", 5)

    def tokens(count: int) -> Path:
        return write(head(entries=1) + entry("t", 9, struct.pack("<IQ", 8, count) + count * text("")))

    assert read_header(tokens(4)).metadata == {"t": [""] * 4}
    with pytest.raises(StartupError, match="more than 5 strings"):
        read_header(tokens(5))


def test_a_file_that_ends_anywhere(write: Callable[[bytes], Path]):
    content = whole()
    for end in range(0, len(content) - 1, 3):
        with pytest.raises(StartupError):
            read_header(write(content[:end]))


def test_damaged_bytes_are_read_or_refused(write: Callable[[bytes], Path]):
    content, rng = whole(), random.Random(1)
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        try:
            header = read_header(write(bytes(damaged)))
        except StartupError:
            continue
        assert all(each.offset + each.num_bytes <= len(damaged) for each in header.tensors.values())


def test_not_a_file(tmp_path: Path):
    (tmp_path / "model.gguf").mkdir()
    with pytest.raises(StartupError, match="is not a file"):
        read_header(tmp_path / "model.gguf")
