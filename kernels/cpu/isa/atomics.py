"""Memory that threads share: atomic reads and writes of 64-bit words, waiting, and waking.

Every read acquires and every write releases: what a thread wrote before it wrote a word is seen by
whoever has read that word.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import external, intrinsic
from kernels.cpu.isa.vectors import I64, call

_syscall = external("syscall", types.int64(*[types.int64] * 7))
_sched_yield = external("sched_yield", types.int32())

_FUTEX = 202  # of x86-64, the only architecture with these vector instructions
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic(types.int64(types.int64))
def read(builder: Any, address: Any) -> Any:
    """The word at an address."""
    return builder.load_atomic(_pointer(builder, address), "acquire", 8)


@intrinsic(types.void(types.int64, types.int64))
def write(builder: Any, address: Any, value: Any) -> None:
    """The word at an address becomes the value."""
    builder.store_atomic(value, _pointer(builder, address), "release", 8)


@intrinsic(types.int64(types.int64, types.int64))
def add(builder: Any, address: Any, value: Any) -> Any:
    """Adds to the word, and returns what it was. A full barrier."""
    return builder.atomic_rmw("add", _pointer(builder, address), value, "seq_cst")


@intrinsic(types.boolean(*[types.int64] * 3))
def replace(builder: Any, address: Any, expected: Any, value: Any) -> Any:
    """The word becomes the value if it is as expected. Whether it was."""
    outcome = builder.cmpxchg(_pointer(builder, address), expected, value, "acq_rel", "acquire")
    return builder.extract_value(outcome, 1)


@intrinsic(types.void())
def pause(builder: Any) -> None:
    """A moment, in a loop that reads a word again and again."""
    call(builder, "llvm.x86.sse2.pause", ir.VoidType())


def give_way() -> None:
    """Another process that waits for this core gets it."""
    _sched_yield()


def sleep_while(address: int, value: int) -> None:
    """Until wake_all() on this address, unless the lower half of the word is another already. May also
    return for no reason."""
    _syscall(_FUTEX, address, _WAIT_PRIVATE, value & 0xFFFFFFFF, 0, 0, 0)


def wake_all(address: int) -> None:
    """Those who sleep on this address."""
    _syscall(_FUTEX, address, _WAKE_PRIVATE, 1 << 30, 0, 0, 0)
