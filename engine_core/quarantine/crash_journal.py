"""The note page: what an engine leaves behind for the next one when it dies, by SIGKILL too.

A page is memory, in life that of a file (notes_file.py). It says who is in the steps that are under way, and
who was a suspect before. Whatever is changed is changed in its place, and needs no more than that: the file
belongs to the kernel, which outlives us. (It need not outlive the kernel: nothing is synced.)

    header    magic, number of the last step, number of the last death, places for members and for suspects
    members   [M] key, step, end, count: in `step` tokens up to `end` were computed, the last `count` of them
              in that step; one more in each step since then. Key 0: nobody
    suspects  [S] key, death, first, end, group, strikes

All numbers are little-endian. A page that makes no sense is as good as none.
"""

import struct
from collections.abc import Iterator, Mapping
from mmap import mmap

from engine_core.quarantine.blame import Span, Suspect, judge

_MAGIC = b"pwnotes1"
_HEADER = struct.Struct("<8sQQII")
_STEP = struct.Struct("<Q")
_STEP_AT = len(_MAGIC)
_MEMBER = struct.Struct("<QQII")
_SUSPECT = struct.Struct("<QQIIII")
_NOBODY = 0
_U32 = (1 << 32) - 1


class CrashJournal:
    """A page for one life of an engine. Suspects are those that it began with."""

    def __init__(self, memory: bytearray | mmap) -> None:
        """memory: writable; of next_journal()."""
        self._memory = memoryview(memory)
        _, _, self.num_deaths, self.num_members, num_suspects = _HEADER.unpack_from(self._memory)
        self._suspects_at: int = _HEADER.size + self.num_members * _MEMBER.size
        self._places: dict[int, int] = {}
        self.suspects: dict[int, Suspect] = {}
        for place in range(num_suspects):
            key, death, first, end, group, strikes = self._read_suspect(place)
            if key != _NOBODY:
                self._places[key] = place
                self.suspects[key] = Suspect(Span(first, end), group, death, strikes)

    def write_step(self, step: int) -> None:
        """The number of the step that is about to be submitted: write its members first."""
        _STEP.pack_into(self._memory, _STEP_AT, step)

    def write_member(self, place: int, key: int, step: int, end: int, count: int) -> None:
        """Somebody is in steps from this one on, or has the rest of his prompt in it."""
        _MEMBER.pack_into(self._memory, _HEADER.size + place * _MEMBER.size, key, step, end, count)

    def clear_member(self, place: int) -> None:
        """He is in no step any more."""
        _STEP.pack_into(self._memory, _HEADER.size + place * _MEMBER.size, _NOBODY)

    def change_suspect(self, key: int, suspect: Suspect) -> None:
        """One that the page has."""
        self.suspects[key] = suspect
        self._write_suspect(self._places[key], key, suspect)

    def clear_suspect(self, key: int) -> None:
        """He is none any more."""
        del self.suspects[key]
        _STEP.pack_into(self._memory, self._suspect_at(self._places.pop(key)), _NOBODY)

    def leave(self) -> None:
        """The engine is dead, and the page as it shall be found: what is still written goes to a copy."""
        self._memory = memoryview(bytearray(self._memory))

    def _suspect_at(self, place: int) -> int:
        return self._suspects_at + place * _SUSPECT.size

    def _read_suspect(self, place: int) -> tuple[int, int, int, int, int, int]:
        key, death, first, end, group, strikes = _SUSPECT.unpack_from(self._memory, self._suspect_at(place))
        return key, death, first, end, group, strikes

    def _write_suspect(self, place: int, key: int, suspect: Suspect) -> None:
        _SUSPECT.pack_into(
            self._memory,
            self._suspect_at(place),
            key,
            suspect.death,
            *suspect.span,
            suspect.group,
            suspect.strikes,
        )


def next_journal(past: bytes, num_rows: int) -> bytearray:
    """A page for the next engine, which runs up to so many sequences at once.

    past: the page of the last one, or anything else. Where that died in a step, its suspects are those that
    it leaves.
    """
    num_deaths, suspects = 0, dict[int, Suspect]()
    if _is_page(past):
        page = CrashJournal(bytearray(past))
        num_deaths, suspects = page.num_deaths, page.suspects
        if present := _merge(_members(past)):
            num_deaths += 1
            suspects = judge(present, suspects, num_deaths)
    return new_journal(num_deaths, suspects, num_rows)


def new_journal(num_deaths: int, suspects: Mapping[int, Suspect], num_rows: int) -> bytearray:
    """A page on which nobody is a member yet. Where there are too many suspects it has the latest."""
    # Each row may be that of a request, and be free again while two steps with the one before are under way.
    num_members, num_suspects = 3 * num_rows, max(4 * num_rows, 64)
    size = _HEADER.size + num_members * _MEMBER.size + num_suspects * _SUSPECT.size
    memory = bytearray(size)
    _HEADER.pack_into(memory, 0, _MAGIC, 0, num_deaths, num_members, num_suspects)
    page = CrashJournal(memory)
    latest = sorted(suspects.items(), key=lambda pair: -pair[1].death)[:num_suspects]
    for place, (key, suspect) in enumerate(latest):
        page._write_suspect(place, key, suspect)
    return memory


def _is_page(past: bytes) -> bool:
    if len(past) < _HEADER.size:
        return False
    magic, _, num_deaths, num_members, num_suspects = _HEADER.unpack_from(past)
    size = _HEADER.size + num_members * _MEMBER.size + num_suspects * _SUSPECT.size
    return bool(magic == _MAGIC and num_deaths <= _U32) and len(past) == size


def _members(past: bytes) -> Iterator[tuple[int, Span]]:
    """Who was in the steps under way, and with which tokens. Two steps may have been."""
    _, last, _, num_members, _ = _HEADER.unpack_from(past)
    for place in range(num_members):
        key, step, end, count = _MEMBER.unpack_from(past, _HEADER.size + place * _MEMBER.size)
        if key == _NOBODY or step > last:  # whose step was not to be submitted yet
            continue
        since = last - step
        back = 2 * count if since < 2 else 2 - since  # tokens of the last two steps
        yield key, Span(min(max(end - back, 0), _U32), min(end + since, _U32))


def _merge(members: Iterator[tuple[int, Span]]) -> dict[int, Span]:
    """By key. Somebody may stand there twice who lost his row and got another one."""
    present: dict[int, Span] = {}
    for key, span in members:
        other = present.get(key, span)
        present[key] = Span(min(span.first, other.first), max(span.end, other.end))
    return present
