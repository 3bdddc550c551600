"""Global memory with its allocations, and shared memory that knows which thread has written and read each
byte."""

from collections.abc import Callable
from ctypes import c_uint8
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
THREADS = 32
"""Of a warp."""
MANY = -2
"""Threads of more than one warp have read a byte; of global memory, more than one program."""
OWNER = 1 << 20
"""An access to shared memory by a whole warp is noted as its number from here on: no thread's. Groups of
warps are noted from twice as much on."""
SEVERAL = 4 << 20
"""Several threads of a warp have read a byte: its number from here on."""
SEEN = 8 << 20
"""Threads of a warp have accessed a byte, and have met since: its number from here on."""
_OF_A_WARP = np.isin(np.arange(16), (OWNER >> 20, SEVERAL >> 20, SEEN >> 20))
"""By the upper bits of what is noted, of which -1 and MANY have the last ones."""


class MemoryFault(Exception):
    """An access that a GPU would make without a word, or end the process for."""


@dataclass
class Allocation:
    """Bytes of this process' memory that a kernel may touch, the program that has written each last, and the
    one that has read it: -1 for none, MANY for several."""

    start: int
    data: NDArray[np.uint8]
    written_by: NDArray[np.int32] = field(init=False)
    read_by: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.written_by = np.full(len(self.data), -1, np.int32)
        self.read_by = np.full(len(self.data), -1, np.int32)


class GlobalMemory:
    """What a launch's pointers may reach: the storages of its tensors, and of others that are named."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []

    def allow(self, start: int, size: int) -> None:
        """Makes `size` bytes from the address `start` reachable."""
        if size and all(known.start != start for known in self._allocations):
            data = np.ctypeslib.as_array((c_uint8 * size).from_address(start))
            self._allocations.append(Allocation(start, data))
            self._allocations.sort(key=lambda known: known.start)

    def forget_accesses(self) -> None:
        """A launch begins: what earlier ones have written all programs may read, and what they have read all
        may write."""
        for allocation in self._allocations:
            allocation.written_by.fill(-1)
            allocation.read_by.fill(-1)

    def load(self, addresses: Array, size: int, program: int) -> Array:
        """addresses: uint64 [n]. Returns uint8 [n, size]. Raises MemoryFault for bytes outside of an
        allocation, a misaligned access, or bytes that another program of this launch has written."""

        def read(found: Allocation, index: Array, rows: Array) -> None:
            writers = found.written_by[index]
            if ((writers != -1) & (writers != program)).any():
                raise MemoryFault(
                    f"a program reads what program {writers.max()} of the same launch has written"
                )
            readers = found.read_by[index]
            found.read_by[index] = np.where((readers == -1) | (readers == program), program, MANY)
            out[rows] = found.data[index]

        out = np.empty((len(addresses), size), np.uint8)
        self._visit(addresses, size, read)
        return out

    def store(self, addresses: Array, values: Array, program: int) -> None:
        """values: uint8 [n, size]. Raises MemoryFault as `load`, and where another program has written or
        read another value: in another order of the programs it would have read this one."""

        def write(found: Allocation, index: Array, rows: Array) -> None:
            writers = found.written_by[index]
            readers, differs = found.read_by[index], found.data[index] != values[rows]
            if ((writers != -1) & (writers != program) & differs).any():
                raise MemoryFault("two programs of a launch write different values to one address")
            if ((readers != -1) & (readers != program) & differs).any():
                raise MemoryFault("a program writes what another one of the same launch has read")
            found.data[index] = values[rows]
            found.written_by[index] = program

        self._visit(addresses, values.shape[1], write)

    def update(self, addresses: Array, change: Callable[[int, int], int], dtype: Any) -> Array:
        """An atomic operation, lane by lane: change(lane, old value) gives the new one. Returns the old
        ones."""
        old = np.empty(len(addresses), dtype)
        for lane, address in enumerate(addresses):

            def swap(found: Allocation, index: Array, rows: Array, lane: int = lane) -> None:
                old[lane] = found.data[index[0]].view(dtype)[0]
                found.data[index[0]] = np.array([change(lane, int(old[lane]))], dtype).view(np.uint8)

            self._visit(np.array([address], np.uint64), old.itemsize, swap)
        return old

    def _visit(self, addresses: Array, size: int, use: Callable[[Allocation, Array, Array], None]) -> None:
        """Calls use(allocation, [m, size] indices of its bytes, rows) for the allocations that are met."""
        if (addresses % np.uint64(size)).any():
            raise MemoryFault(f"an access of {size} bytes is misaligned")
        starts = np.array([known.start for known in self._allocations], np.uint64)
        homes = np.searchsorted(starts, addresses, side="right") - 1
        for home in np.unique(homes):
            rows = np.flatnonzero(homes == home)
            if home < 0:
                raise MemoryFault(f"no allocation at address {int(addresses[rows[0]]):#x}")
            found = self._allocations[home]
            offsets = (addresses[rows] - np.uint64(found.start)).astype(np.int64)
            if offsets.max() + size > len(found.data):
                over = int(offsets.max()) + size - len(found.data)
                raise MemoryFault(f"{over} bytes beyond the end of an allocation of {len(found.data)} bytes")
            use(found, offsets[:, None] + np.arange(size), rows)


def warps_of(owners: Array) -> Array:
    """Returns the numbers of the warps of noted accesses, -1 where there is none or more than one."""
    kind, number = owners >> 20, owners & (OWNER - 1)
    return np.where(_OF_A_WARP[kind], number, np.where(kind == 0, number // THREADS, -1))


class SharedMemory:
    """The shared memory of one program. Between two barriers, a byte that one thread writes no other may
    touch; those of its warp may behind a barrier of the warp.

    Bytes begin as poison. A copy of `cp.async` lands when its thread waits for it; to touch its bytes before
    is a fault. Bytes that threads have written are not seen by `wgmma` before a proxy fence of theirs.
    """

    def __init__(self, size: int, poison: int) -> None:
        self.data = np.full(size, poison, np.uint8)
        self._epoch = 1  # barriers so far
        self._writer = np.full(size, -1, np.int32)
        self._written = np.zeros(size, np.int32)  # the epoch
        self._reader = np.full(size, -1, np.int32)
        self._read = np.zeros(size, np.int32)
        self._in_flight = np.zeros(size, np.bool_)
        self._unfenced = np.zeros(size, np.bool_)

    def barrier(self) -> None:
        """All threads have come: what was written is seen by all."""
        self._epoch += 1

    def warp_barrier(self, warps: Array) -> None:
        """All threads of each of these warps have met: what one has written or read is settled among them."""
        for owners, epochs in ((self._writer, self._written), (self._reader, self._read)):
            numbers = warps_of(owners)
            settled = (epochs == self._epoch) & np.isin(numbers, warps)
            owners[settled] = SEEN + numbers[settled]

    def load(self, addresses: Array, size: int, threads: Array) -> Array:
        """addresses: [n] offsets; threads: [n]. Returns uint8 [n, size]."""
        index = self._index(addresses, size)
        if self._in_flight[index].any():
            raise MemoryFault("shared memory is read before the copy to it was waited for")
        owners = threads[:, None]
        if ((self._written[index] == self._epoch) & _others(self._writer[index], owners)).any():
            raise MemoryFault("shared memory is read that another thread has written since the last barrier")
        again = (self._read[index] == self._epoch) & _others(self._reader[index], owners)
        noted = np.broadcast_to(owners, index.shape)
        if again.any():
            noted = np.where(again, _together(self._reader[index], owners), owners)
        self._reader[index] = noted
        last = self._reader[index]  # of several threads of this one access
        differs = last != noted
        if differs.any():
            both = _together(last, noted)
            for chosen in (differs, differs & (both == MANY)):
                self._reader[index[chosen]] = both[chosen]
        self._read[index] = self._epoch
        return self.data[index]

    def store(self, addresses: Array, values: Array, threads: Array) -> None:
        """values: uint8 [n, size]."""
        index = self._index(addresses, values.shape[1])
        self._claim(index, values, threads)
        self.data[index] = values
        if (self.data[index] != values).any():
            raise MemoryFault("two threads write different values to one address of shared memory")
        self._unfenced[index] = True

    def begin_copy(self, addresses: Array, size: int, threads: Array) -> Array:
        """A copy is on its way. Returns the indices [n, size] that `land` takes."""
        index = self._index(addresses, size)
        self._claim(index, None, threads)
        self._in_flight[index] = True
        return index

    def land(self, index: Array, values: Array, threads: Array) -> None:
        """What `begin_copy` has begun is there, for the thread that has waited."""
        self._in_flight[index] = False
        self.data[index] = values
        self._writer[index] = threads[:, None]
        self._written[index] = self._epoch
        self._unfenced[index] = True

    def fence(self, threads: Array) -> None:
        """What these threads have written, or what they have seen by a barrier, `wgmma` may read."""
        self._unfenced &= (self._written == self._epoch) & ~np.isin(self._writer, threads)

    def product_reads(self, index: Array, owner: int) -> Array:
        """What a product of a group of warps reads, outside of the order of its threads. owner: a number for
        the group, which is no thread's."""
        if self._unfenced[index].any():
            raise MemoryFault("wgmma reads what threads have written, without a proxy fence between")
        flat = index.reshape(-1, 1)
        return self.load(flat[:, 0], 1, np.full(len(flat), owner, np.int32)).reshape(index.shape)

    def _claim(self, index: Array, values: Array | None, threads: Array) -> None:
        owners = threads[:, None]
        if self._in_flight[index].any():
            raise MemoryFault("shared memory is written while a copy to it is on its way")
        others = (self._written[index] == self._epoch) & _others(self._writer[index], owners)
        if values is not None:
            others &= self.data[index] != values
        if others.any():
            raise MemoryFault("two threads write to one address of shared memory since the last barrier")
        if ((self._read[index] == self._epoch) & _others(self._reader[index], owners)).any():
            raise MemoryFault("shared memory is written that another thread has read since the last barrier")
        self._writer[index] = owners
        self._written[index] = self._epoch

    def _index(self, addresses: Array, size: int) -> Array:
        offsets = addresses.astype(np.int64)
        if (offsets % size).any():
            raise MemoryFault(f"an access of {size} bytes to shared memory is misaligned")
        if len(offsets) and (offsets.min() < 0 or offsets.max() + size > len(self.data)):
            raise MemoryFault(f"an access outside of the {len(self.data)} bytes of shared memory")
        return np.asarray(offsets[:, None] + np.arange(size))


def _others(noted: Array, owners: Array) -> Array:
    """Whether a noted access is another thread's, with which these have not met."""
    differs, seen = noted != owners, noted >= SEEN
    if not seen.any():
        return np.asarray(differs)
    return np.asarray(differs & ~(seen & (warps_of(noted) == warps_of(owners))))


def _together(one: Array, other: Array) -> Array:
    """Returns what is noted of two accesses by different threads."""
    warps = warps_of(one)
    return np.where((warps >= 0) & (warps == warps_of(other)), SEVERAL + warps, MANY)
