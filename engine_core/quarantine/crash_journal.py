"""The crash journal: what an engine leaves to the next one when it dies, also by SIGKILL.

A journal is memory, in production that of a file, one for each address that a core listens on. It holds the
last K steps, the most that can be in flight, and the suspects that the engine began with. Changes are made
in place: the file's pages belong to the kernel, which outlives the process. (It need not outlive the kernel:
nothing is synced.)

    header    magic, number of the last death, rows N, suspects S, steps K
    steps     [K] of step k in slot k mod K: step, rows R of it; then columns:
              keys [N] of the request that holds each row, 0: none; rows, starts, counts [R], padded to N:
              the step computes the tokens starts to starts + counts - 1 of the sequence in a row
    suspects  [S] key, death, first, end, group, strikes

All numbers are little-endian. A journal that makes no sense is ignored.
"""

import contextlib
import hashlib
import logging
import os
import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from pathlib import Path

from engine_core.quarantine.blame import Span, Suspect, judge
from engine_core.step.plan import Plan
from pagewire.ipc import transport
from pagewire.ipc.columns import pack_u32

log = logging.getLogger(__name__)

_MAGIC = b"pwnotes3"
_HEADER = struct.Struct("<8sQIII")
_STEP = struct.Struct("<QQ")
_KEY = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_SUSPECT = struct.Struct("<QQIIII")
_NONE = 0
_MAX_U32 = (1 << 32) - 1
NUM_STEPS = 2
"""Of a core that runs one step ahead."""
_MOST_BYTES = 64 << 20
"""A larger file is not a journal: one of 100,000 rows has 18 MB."""


class _StepSlot:
    """Where the journal keeps a step, and those that take its place."""

    def __init__(self, at: int, num_rows: int) -> None:
        self.at = at
        self.keys = at + _STEP.size
        self.rows = self.keys + num_rows * _KEY.size
        self.starts, self.counts = self.rows + 4 * num_rows, self.rows + 8 * num_rows
        self.changed: set[int] = set()  # rows whose keys differ from those in memory
        self.written_rows: list[int] = []
        self.written_counts: list[int] = []

    @staticmethod
    def size(num_rows: int) -> int:
        """Bytes of one slot."""
        return _STEP.size + num_rows * (_KEY.size + 12)


class CrashJournal:
    """The journal of one life of an engine. Its suspects are those that the engine began with."""

    def __init__(self, memory: bytearray | mmap) -> None:
        """memory: writable; of next_journal()."""
        self._memory = memoryview(memory)
        _, self.num_deaths, self.num_rows, num_suspects, num_steps = _HEADER.unpack_from(self._memory)
        size = _StepSlot.size(self.num_rows)
        self._steps = [_StepSlot(_HEADER.size + i * size, self.num_rows) for i in range(num_steps)]
        self._suspects_at: int = _HEADER.size + num_steps * size
        self._keys = [_NONE] * self.num_rows
        self._slots: dict[int, int] = {}  # of suspects, by key
        self.suspects: dict[int, Suspect] = {}
        for slot in range(num_suspects):
            key, death, first, end, group, strikes = self._read_suspect(slot)
            if key != _NONE:
                self._slots[key] = slot
                self.suspects[key] = Suspect(Span(first, end), group, death, strikes)

    def key_of(self, row: int) -> int:
        """Key of the request that holds a row, or was the last to hold it; 0: none."""
        return self._keys[row]

    def assign_row(self, row: int, key: int) -> None:
        """A request holds this row in the steps that are written from now on."""
        self._keys[row] = key
        for slot in self._steps:
            slot.changed.add(row)

    def write_step(self, plan: Plan) -> None:
        """Writes a plan that is about to be submitted, in place of the oldest one."""
        slot, memory = self._steps[plan.step % len(self._steps)], self._memory
        _STEP.pack_into(memory, slot.at, _NONE, 0)  # invalid until it is complete
        for row in slot.changed:
            _KEY.pack_into(memory, slot.keys + row * _KEY.size, self._keys[row])
        slot.changed.clear()
        size = 4 * len(plan.rows)
        if plan.rows != slot.written_rows:
            memory[slot.rows : slot.rows + size] = pack_u32(plan.rows)
            slot.written_rows = plan.rows
        memory[slot.starts : slot.starts + size] = plan.packed_starts()
        if plan.counts != slot.written_counts:
            memory[slot.counts : slot.counts + size] = pack_u32(plan.counts)
            slot.written_counts = plan.counts
        _STEP.pack_into(memory, slot.at, plan.step, len(plan.rows))

    def clear_rows(self, rows: list[int], key: int) -> None:
        """A request is in none of the steps any more, or need not be found there."""
        for slot in self._steps:
            for row in rows:
                at = slot.keys + row * _KEY.size
                if _KEY.unpack_from(self._memory, at) == (key,):
                    _KEY.pack_into(self._memory, at, _NONE)

    def change_suspect(self, key: int, suspect: Suspect) -> None:
        """Changes one of the suspects."""
        self.suspects[key] = suspect
        self._write_suspect(self._slots[key], key, suspect)

    def clear_suspect(self, key: int) -> None:
        """Removes one of the suspects."""
        del self.suspects[key]
        _KEY.pack_into(self._memory, self._suspect_at(self._slots.pop(key)), _NONE)

    def leave(self) -> None:
        """Detaches the file, so that the next engine finds the journal as it is now."""
        self._memory = memoryview(bytearray(self._memory))

    def _suspect_at(self, slot: int) -> int:
        return self._suspects_at + slot * _SUSPECT.size

    def _read_suspect(self, slot: int) -> tuple[int, int, int, int, int, int]:
        key, death, first, end, group, strikes = _SUSPECT.unpack_from(self._memory, self._suspect_at(slot))
        return key, death, first, end, group, strikes

    def _write_suspect(self, slot: int, key: int, suspect: Suspect) -> None:
        _SUSPECT.pack_into(
            self._memory,
            self._suspect_at(slot),
            key,
            suspect.death,
            *suspect.span,
            suspect.group,
            suspect.strikes,
        )


def next_journal(
    past: bytes, num_rows: int, *, killed: bool = False, num_steps: int = NUM_STEPS
) -> bytearray:
    """Returns the journal of the next engine, which runs up to `num_rows` sequences at once, with up to
    `num_steps` steps in flight.

    past: the journal of the last engine, or any other bytes. If that engine died in a step, the requests of
    the step are among the suspects. killed: it, or its worker, was killed by SIGKILL.
    """
    num_deaths, suspects = 0, dict[int, Suspect]()
    if _is_journal(past):
        journal = CrashJournal(bytearray(past))
        num_deaths, suspects = journal.num_deaths, journal.suspects
        if present := _merge(_spans(past)):
            num_deaths += 1
            suspects = judge(present, suspects, num_deaths, killed=killed)
    return new_journal(num_deaths, suspects, num_rows, num_steps)


def new_journal(
    num_deaths: int, suspects: Mapping[int, Suspect], num_rows: int, num_steps: int = NUM_STEPS
) -> bytearray:
    """Returns a journal without steps. Of too many suspects it has the latest."""
    num_suspects = max(4 * num_rows, 64)
    memory = bytearray(_size(num_rows, num_suspects, num_steps))
    _HEADER.pack_into(memory, 0, _MAGIC, num_deaths, num_rows, num_suspects, num_steps)
    journal = CrashJournal(memory)
    latest = sorted(suspects.items(), key=lambda pair: -pair[1].death)[:num_suspects]
    for slot, (key, suspect) in enumerate(latest):
        journal._write_suspect(slot, key, suspect)
    return memory


def _size(num_rows: int, num_suspects: int, num_steps: int) -> int:
    return _HEADER.size + num_steps * _StepSlot.size(num_rows) + num_suspects * _SUSPECT.size


def _is_journal(past: bytes) -> bool:
    if len(past) < _HEADER.size:
        return False
    magic, num_deaths, *sizes = _HEADER.unpack_from(past)
    return bool(magic == _MAGIC and num_deaths <= _MAX_U32 and sizes[2]) and len(past) == _size(*sizes)


def _spans(past: bytes) -> Iterator[tuple[int, Span]]:
    """Yields key and tokens of each row in the steps that may have been in flight."""
    _, _, num_rows, _, num_steps = _HEADER.unpack_from(past)
    size = _StepSlot.size(num_rows)
    slots = [_StepSlot(_HEADER.size + i * size, num_rows) for i in range(num_steps)]
    last = max(_STEP.unpack_from(past, slot.at)[0] for slot in slots)
    for slot in slots:
        step, count = _STEP.unpack_from(past, slot.at)
        if step == _NONE or step + num_steps <= last or count > num_rows:
            continue
        for entry in range(count):
            row, start, length = (
                _U32.unpack_from(past, column + 4 * entry)[0]
                for column in (slot.rows, slot.starts, slot.counts)
            )
            key = _KEY.unpack_from(past, slot.keys + row * _KEY.size)[0] if row < num_rows else _NONE
            if key != _NONE:
                yield key, Span(start, min(start + length, _MAX_U32))


def _merge(spans: Iterator[tuple[int, Span]]) -> dict[int, Span]:
    """One span for each request, which may be in two steps, and in several rows of each."""
    present: dict[int, Span] = {}
    for key, span in spans:
        other = present.get(key, span)
        present[key] = Span(min(span.first, other.first), max(span.end, other.end))
    return present


def journal_path(listen: str) -> Path:
    """Returns the path where the next core that listens on this address looks for the journal."""
    if listen.startswith("ipc://"):
        return Path(listen.removeprefix("ipc://") + ".notes")
    digest = hashlib.blake2b(listen.encode(), digest_size=8).hexdigest()
    return transport.default_folder() / f"{digest}.notes"


def open_journal(
    path: Path, num_rows: int, *, killed: bool = False, num_steps: int = NUM_STEPS
) -> CrashJournal:
    """Returns the journal of this life; its file (mode 0600) atomically replaces that of the last engine.

    Call it once this process holds the address. If the file cannot be written, the journal is lost with the
    process. killed: the last engine, or its worker, was killed by SIGKILL. num_steps: see next_journal().
    """
    past = b""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MOST_BYTES:
            past = path.read_bytes()
    memory = next_journal(past, num_rows, killed=killed, num_steps=num_steps)
    try:
        return CrashJournal(_map(path, memory))
    except OSError as error:
        log.warning(
            "no crash journal is kept (%s): a request that makes the engine die will not be found",
            error.strerror,
        )
        return CrashJournal(memory)


def _map(path: Path, content: bytearray) -> mmap:
    """Returns a shared mapping of a new file with this content. Raises OSError."""
    fresh = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    with open(fresh, "x+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)  # all of it: a full disk fails here, and not when the journal is written to
        file.flush()
        memory = mmap(file.fileno(), len(content))
        os.replace(fresh, path)
    return memory
