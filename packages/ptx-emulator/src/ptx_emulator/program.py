"""What one program of a launch has: threads with their registers, memory, copies and products on their
way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.parser import Kernel
from ptx_emulator.threads import Threads

Array = NDArray[Any]


@dataclass
class Copy:
    """One cp.async of some threads: read from global memory when it lands, which is as late as may be."""

    threads: Array  # [n]
    index: Array  # [n, size]: bytes of shared memory
    sources: Array  # [n]: addresses
    read: Array  # [n]: bytes that come from there; the rest is zeros
    group: Array  # [n]: of the thread's groups, the one that it belongs to


@dataclass(eq=False)
class Product:
    """One wgmma of a group of warps: computed when it is started, seen when it was waited for."""

    registers: tuple[str, ...]
    held: tuple[str, ...]  # registers that it reads, which must not change before
    results: list[Array]  # uint32 [128] each
    check: Callable[[], None]  # raises if an operand in shared memory has changed since
    batch: int = -1  # the group of products that it was committed with


@dataclass
class EmulatedProgram:
    """What instructions act on."""

    kernel: Kernel
    number: int
    threads: Threads
    memory: GlobalMemory
    shared: SharedMemory
    parameters: dict[str, int | float]
    copy_groups: Array  # [threads]: groups of copies that each thread has committed
    copies: list[Copy] = field(default_factory=list)  # that have not landed
    products: list[list[Product]] = field(default_factory=list)  # by group of warps, oldest first
    batches: list[int] = field(default_factory=list)  # that each group of warps has committed

    def active_threads(self, active: Array | None) -> Array:
        """The numbers of the threads that run an instruction."""
        return self.threads.ids if active is None else self.threads.ids[active]
