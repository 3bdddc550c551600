"""Reads object files as LLVM writes them: ELF of 64 bits, little-endian."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_ALLOCATED = 2


@dataclass(frozen=True)
class Section:
    """A part of the file."""

    name: str
    kind: int
    flags: int
    contents: bytes  # zeros where the file has none
    link: int  # index of a section that this one is about
    info: int  # of relocations: index of the section that they change

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory while the code runs."""
        return bool(self.flags & _ALLOCATED)


@dataclass(frozen=True)
class Symbol:
    """A name of the file, or one that it needs."""

    name: str
    section: int  # index; 0: it is defined elsewhere
    value: int  # bytes from the section's begin


@dataclass(frozen=True)
class Relocation:
    """A place that depends on an address."""

    section: int  # index of the section that is changed
    offset: int  # bytes from its begin
    kind: int  # as the processor's ABI counts them
    symbol: Symbol
    addend: int


class ObjectFile:
    """The sections of an object file, and what is in its tables."""

    def __init__(self, contents: bytes) -> None:
        """contents: of the file. Raises ValueError for anything but ELF of 64 bits, little-endian."""
        if contents[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no object file in ELF of 64 bits, little-endian")
        self.sections = _sections(contents)
        self.symbols = [
            symbol for one in self.sections if one.kind == _SYMBOLS for symbol in self._symbols(one)
        ]

    @property
    def undefined(self) -> set[str]:
        """Names that other files must define."""
        return {symbol.name for symbol in self.symbols if symbol.name and symbol.section == 0}

    def relocations(self) -> Iterator[Relocation]:
        """Of all sections that are loaded."""
        for one in self.sections:
            if one.kind == _RELOCATIONS and self.sections[one.info].is_loaded:
                for offset, info, addend in struct.iter_unpack("<QQq", one.contents):
                    yield Relocation(one.info, offset, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)

    def _symbols(self, table: Section) -> Iterator[Symbol]:
        names = self.sections[table.link].contents
        for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.contents):
            yield Symbol(_text(names, name), section, value)


def _sections(contents: bytes) -> list[Section]:
    (first,), (count, names_at) = (
        struct.unpack_from("<Q", contents, 40),
        struct.unpack_from("<HH", contents, 60),
    )
    heads = [struct.unpack_from("<IIQQQQIIQQ", contents, first + 64 * index) for index in range(count)]
    *_, offset, size, _, _, _, _ = heads[names_at]
    names, sections = contents[offset : offset + size], []
    for name, kind, flags, _, offset, size, link, info, _, _ in heads:
        inside = bytes(size) if kind == _NO_BITS else contents[offset : offset + size]
        sections.append(Section(_text(names, name), kind, flags, inside, link, info))
    return sections


def _text(names: bytes, first: int) -> str:
    return names[first : names.index(b"\0", first)].decode()
