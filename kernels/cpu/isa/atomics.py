"""Memory that threads share: atomic reads and writes of 64-bit words, waiting, and waking.

Every read acquires and every write releases: what a thread wrote before it wrote a word is seen by any thread
that has read that word. The references are those of a single thread.
"""

from typing import Any

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import external, lowered_by
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import I64, read_i64, write_i64

_syscall = external("syscall", types.int64(*[types.int64] * 7))
_sched_yield = external("sched_yield", types.int32())

_FUTEX = OPERATIONS.futex
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


def _read(builder: Any, address: Any) -> Any:
    return builder.load_atomic(_pointer(builder, address), "acquire", 8)


def _write(builder: Any, address: Any, value: Any) -> None:
    builder.store_atomic(value, _pointer(builder, address), "release", 8)


def _add(builder: Any, address: Any, value: Any) -> Any:
    return builder.atomic_rmw("add", _pointer(builder, address), value, "seq_cst")


def _replace(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    outcome = builder.cmpxchg(_pointer(builder, address), expected, value, "acq_rel", "acquire")
    return builder.extract_value(outcome, 1)


@lowered_by(_read, types.int64(types.int64))
def read(address: int) -> int:
    """Returns the word at an address."""
    return read_i64(address)


@lowered_by(_write, types.void(types.int64, types.int64))
def write(address: int, value: int) -> None:
    """Writes a word to an address."""
    write_i64(address, value)


@lowered_by(_add, types.int64(types.int64, types.int64))
def add(address: int, value: int) -> int:
    """Adds to the word at an address, and returns what it was. A full barrier."""
    before = read_i64(address)
    write_i64(address, before + value)
    return before


@lowered_by(_replace, types.boolean(*[types.int64] * 3))
def replace(address: int, expected: int, value: int) -> bool:
    """Writes a word to an address if the word there is the expected one. Returns whether it was."""
    equal = read_i64(address) == expected
    if equal:
        write_i64(address, value)
    return equal


@lowered_by(lambda b: OPERATIONS.pause(b), types.void())
def pause() -> None:
    """Waits for a moment, in a loop that reads a word again and again."""


def yield_core() -> None:
    """Lets another thread that waits for this core run."""
    _sched_yield()


def sleep_while(address: int, value: int) -> None:
    """Blocks until wake_all() on this address; returns at once if the lower half of the word differs. May
    also return spuriously."""
    _syscall(_FUTEX, address, _WAIT_PRIVATE, value & 0xFFFFFFFF, 0, 0, 0)


def wake_all(address: int) -> None:
    """Wakes all threads that sleep on this address."""
    _syscall(_FUTEX, address, _WAKE_PRIVATE, 1 << 30, 0, 0, 0)
