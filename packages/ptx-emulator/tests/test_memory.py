"""Memory of emulated programs: allocations, and which thread has written and read each byte of them."""

from collections.abc import Iterator

import numpy as np
import pytest

from ptx_emulator.memory import (
    MANY,
    OWNER,
    SEEN,
    SEVERAL,
    GlobalMemory,
    MemoryFault,
    SharedMemory,
    warps_of,
)

SIZE = 64


class Block:
    """Bytes on a boundary of 16, of which a memory may touch the first ones."""

    def __init__(self, size: int = SIZE) -> None:
        raw = np.zeros(size + 32, np.uint8)
        self.data = raw[-raw.ctypes.data % 16 :][: size + 16]
        self.start, self.size = self.data.ctypes.data, size

    def at(self, *offsets: int) -> np.ndarray:
        return np.array([self.start + offset for offset in offsets], np.uint64)


def memory_of(*blocks: Block) -> GlobalMemory:
    memory = GlobalMemory()
    for block in blocks:
        memory.allow(block.start, block.size)
    return memory


def numbers(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.uint8)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_what_is_stored_is_loaded(size: int):
    """Several threads load at once, in any order; what lies beside stays."""
    block = Block()
    memory, offsets = memory_of(block), [3 * size, 0, 2 * size]
    values = np.arange(1, 3 * size + 1, dtype=np.uint8).reshape(3, size)
    memory.store(block.at(*offsets), values, 0)
    assert (memory.load(block.at(*offsets[::-1]), size, 0) == values[::-1]).all()
    touched = {offset + n for offset in offsets for n in range(size)}
    assert all((block.data[n] != 0) == (n in touched) for n in range(SIZE))


def test_the_last_byte_of_an_allocation_is_its_last():
    block = Block()
    memory = memory_of(block)
    for size in (1, 4, 16):
        memory.load(block.at(0, SIZE - size), size, 0)
        with pytest.raises(
            MemoryFault, match=f"^{size} bytes beyond the end of an allocation of {SIZE} bytes"
        ):
            memory.load(block.at(0, SIZE), size, 0)
        with pytest.raises(MemoryFault, match="beyond the end"):
            memory.store(block.at(SIZE), np.ones((1, size), np.uint8), 0)
    assert not block.data.any()


def test_an_address_before_all_allocations():
    block = Block()
    with pytest.raises(MemoryFault, match=f"no allocation at address {block.start - 16:#x}"):
        memory_of(block).load(block.at(0, -16), 4, 0)
    with pytest.raises(MemoryFault, match="no allocation"):
        GlobalMemory().load(block.at(0), 4, 0)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_an_access_is_on_a_multiple_of_its_size(size: int):
    """One thread among several counts, too."""
    block = Block()
    memory = memory_of(block)
    for offset in range(1, size):
        with pytest.raises(MemoryFault, match=f"an access of {size} bytes is misaligned"):
            memory.load(block.at(0, offset), size, 0)


def test_threads_may_reach_several_allocations_at_once():
    blocks = [Block() for _ in range(3)]
    memory = memory_of(*reversed(blocks))
    addresses = np.concatenate([block.at(4 * n) for n, block in enumerate(blocks)])
    memory.store(addresses, numbers([1] * 4, [2] * 4, [3] * 4), 0)
    for n, block in enumerate(blocks):
        assert block.data[4 * n : 4 * n + 4].tolist() == [n + 1] * 4 and block.data.sum() == 4 * (n + 1)
    assert (memory.load(addresses, 4, 0)[:, 0] == [1, 2, 3]).all()


def test_an_allocation_is_known_by_its_start():
    """Allowing it again changes nothing, not its writers either; one of no bytes is none."""
    block = Block()
    memory = memory_of(block)
    memory.store(block.at(0), numbers([1]), 0)
    memory.allow(block.start, block.size)
    with pytest.raises(MemoryFault, match="what program 0"):
        memory.load(block.at(0), 1, 1)
    empty = GlobalMemory()
    empty.allow(block.start, 0)
    with pytest.raises(MemoryFault, match="no allocation"):
        empty.load(block.at(0), 1, 0)


def test_programs_of_a_launch_share_nothing():
    """One may read its own again; two may write the same value; the next launch reads all."""
    block = Block()
    memory = memory_of(block)
    memory.store(block.at(0, 4), numbers([1] * 4, [2] * 4), 3)
    assert memory.load(block.at(4), 4, 3).tolist() == [[2] * 4]
    with pytest.raises(MemoryFault, match="what program 3 of the same launch has written"):
        memory.load(block.at(8, 4), 4, 0)
    memory.store(block.at(0), numbers([1] * 4), 5)
    with pytest.raises(MemoryFault, match="two programs of a launch write different values"):
        memory.store(block.at(4), numbers([2, 2, 2, 3]), 5)
    memory.forget_accesses()
    assert memory.load(block.at(0, 4), 4, 5).tolist() == [[1] * 4, [2] * 4]
    memory.store(block.at(4), numbers([9] * 4), 5)


def test_what_a_program_has_read_no_other_one_changes():
    """Neither where one other has read it, nor where several have; the same value is no change."""
    block = Block()
    memory = memory_of(block)
    memory.load(block.at(0, 4), 4, 1)
    memory.load(block.at(4), 4, 2)
    for program, offset in ((0, 0), (2, 0), (0, 4), (1, 4), (2, 4)):
        memory.store(block.at(offset), numbers([0] * 4), program)
        with pytest.raises(MemoryFault, match="writes what another one of the same launch has read"):
            memory.store(block.at(offset), numbers([0, 0, 0, 1]), program)
        memory.forget_accesses()
        memory.load(block.at(0, 4), 4, 1)
        memory.load(block.at(4), 4, 2)
    memory.store(block.at(0), numbers([1] * 4), 1)
    memory.forget_accesses()
    memory.store(block.at(0, 4), numbers([2] * 4, [3] * 4), 0)
    assert not block.data[8:].any()


def test_updates_are_made_one_after_the_other():
    """Threads in ascending order, each with its number; old values come back."""
    block = Block()
    memory = memory_of(block)
    block.data[:4] = np.array([100], np.int32).view(np.uint8)
    old = memory.update(block.at(0, 4, 0, 0), lambda lane, value: value + 10**lane, np.dtype(np.int32))
    assert old.tolist() == [100, 0, 101, 201]
    assert block.data[:8].view(np.int32).tolist() == [1201, 10]
    with pytest.raises(MemoryFault, match="misaligned"):
        memory.update(block.at(2), lambda lane, value: value, np.dtype(np.int32))


def test_accesses_are_noted_by_warp():
    """A thread has its number; a warp, several threads, and threads that have met have numbers of theirs."""
    notes = [0, 31, 32, 95, OWNER, OWNER + 7, SEVERAL + 2, SEEN + 5, -1, MANY, 2 * OWNER + 1]
    assert warps_of(np.array(notes, np.int32)).tolist() == [0, 0, 1, 2, 0, 7, 2, 5, -1, -1, -1]


def threads(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def offsets(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


WRITE = numbers([1, 2, 3, 4])


def test_shared_memory_begins_as_poison():
    for poison in (0xFF, 0x7E):
        found = SharedMemory(16, poison).load(offsets(0, 12), 4, threads(0, 1))
        assert (found == poison).all() and found.shape == (2, 4)


@pytest.mark.parametrize(
    ("offset", "size", "message"),
    [
        (16, 4, "outside of the 16 bytes"),
        (8, 16, "misaligned"),
        (2, 4, "misaligned"),
        (32, 16, "outside of the 16 bytes"),
        ((1 << 64) - 4, 4, "outside of the 16 bytes"),
    ],
)
def test_accesses_to_shared_memory_are_within_it(offset: int, size: int, message: str):
    memory = SharedMemory(16, 0)
    with pytest.raises(MemoryFault, match=message):
        memory.load(offsets(0, offset), size, threads(0, 1))
    with pytest.raises(MemoryFault, match=message):
        memory.store(offsets(offset), np.ones((1, size), np.uint8), threads(1))
    with pytest.raises(MemoryFault, match=message):
        memory.begin_copy(offsets(offset), size, threads(1))


def written_by(thread: int) -> SharedMemory:
    """Its bytes 4 to 7 have been written by a thread."""
    memory = SharedMemory(16, 0)
    memory.store(offsets(4), WRITE, threads(thread))
    return memory


def test_a_thread_sees_what_it_has_written():
    assert written_by(5).load(offsets(4), 4, threads(5)).tolist() == WRITE.tolist()


@pytest.mark.parametrize("other", [0, 4, 6, 37])
def test_others_see_it_behind_a_barrier(other: int):
    """A part of it is enough for a fault, and so is a load that is wider."""
    with pytest.raises(MemoryFault, match="another thread has written"):
        written_by(5).load(offsets(4), 4, threads(other))
    with pytest.raises(MemoryFault, match="another thread has written"):
        written_by(5).load(offsets(7), 1, threads(other))
    with pytest.raises(MemoryFault, match="another thread has written"):
        written_by(5).load(offsets(0), 8, threads(other))
    memory = written_by(5)
    assert memory.load(offsets(0, 8), 4, threads(other, other)).tolist() == [[0] * 4] * 2
    memory.barrier()
    assert memory.load(offsets(4), 4, threads(other)).tolist() == WRITE.tolist()


@pytest.mark.parametrize("other", [6, 37])
def test_two_threads_may_write_the_same_value_and_no_other(other: int):
    memory = written_by(5)
    memory.store(offsets(4), WRITE, threads(other))
    with pytest.raises(MemoryFault, match="two threads write to one address"):
        memory.store(offsets(4), WRITE + 1, threads(5))
    memory.barrier()
    memory.store(offsets(4), WRITE + 1, threads(5))


def test_two_values_for_one_address_in_one_store():
    with pytest.raises(MemoryFault, match="two threads write different values"):
        SharedMemory(16, 0).store(offsets(4, 4), numbers([1] * 4, [2] * 4), threads(0, 1))
    same = SharedMemory(16, 0)
    same.store(offsets(4, 4), numbers([1] * 4, [1] * 4), threads(0, 1))


@pytest.mark.parametrize("readers", [(7,), (7, 8), (7, 40), (6, 7)])
def test_what_another_thread_has_read_is_not_written(readers: tuple[int, ...]):
    """One load and several count alike; the thread itself may."""
    for together in (True, False):
        memory = SharedMemory(16, 0)
        if together:
            memory.load(offsets(*[4] * len(readers)), 4, threads(*readers))
        else:
            for reader in readers:
                memory.load(offsets(4), 4, threads(reader))
        with pytest.raises(MemoryFault, match="another thread has read"):
            memory.store(offsets(4), WRITE, threads(6))
        memory.store(offsets(0, 8), np.concatenate([WRITE, WRITE]), threads(6, 6))
        memory.barrier()
        memory.store(offsets(4), WRITE, threads(6))
    alone = SharedMemory(16, 0)
    alone.load(offsets(4), 4, threads(6))
    alone.store(offsets(4), WRITE, threads(6))


def test_a_barrier_of_a_warp_is_for_its_threads():
    """Threads 5 and 6 are of warp 0, and 37 is of warp 1."""
    for thread, other, met in ((5, 6, [0]), (5, 6, [0, 1]), (37, 38, [1])):
        memory = written_by(thread)
        memory.warp_barrier(np.array(met))
        assert memory.load(offsets(4), 4, threads(other)).tolist() == WRITE.tolist()
    for other, met in ((6, [1]), (37, [0]), (37, [0, 1])):
        memory = written_by(5)
        memory.warp_barrier(np.array(met))
        with pytest.raises(MemoryFault, match="another thread has written"):
            memory.load(offsets(4), 4, threads(other))


def test_what_a_warp_has_read_may_be_written_behind_its_barrier():
    for readers, allowed in (((7,), True), ((7, 8), True), ((7, 40), False)):
        memory = SharedMemory(16, 0)
        memory.load(offsets(*[4] * len(readers)), 4, threads(*readers))
        memory.warp_barrier(np.array([0, 1]))
        if allowed:
            memory.store(offsets(4), WRITE, threads(6))
        else:
            with pytest.raises(MemoryFault, match="another thread has read"):
                memory.store(offsets(4), WRITE, threads(6))


def test_a_copy_is_nowhere_until_it_lands():
    """Then its thread sees it, and behind a barrier all do."""
    memory = SharedMemory(16, 0)
    index = memory.begin_copy(offsets(4), 4, threads(5))
    assert index.tolist() == [[4, 5, 6, 7]]
    with pytest.raises(MemoryFault, match="before the copy to it was waited for"):
        memory.load(offsets(4), 4, threads(5))
    with pytest.raises(MemoryFault, match="while a copy to it is on its way"):
        memory.store(offsets(4), WRITE, threads(5))
    memory.barrier()  # which waits for no copy
    with pytest.raises(MemoryFault, match="before the copy to it was waited for"):
        memory.load(offsets(7), 1, threads(6))
    assert memory.load(offsets(0, 8), 4, threads(5, 6)).tolist() == [[0] * 4] * 2
    memory.land(index, WRITE, threads(5))
    assert memory.load(offsets(4), 4, threads(5)).tolist() == WRITE.tolist()
    with pytest.raises(MemoryFault, match="another thread has written"):
        memory.load(offsets(4), 4, threads(6))
    memory.barrier()
    assert memory.load(offsets(4), 4, threads(6)).tolist() == WRITE.tolist()


@pytest.fixture
def to_multiply() -> Iterator[SharedMemory]:
    """Bytes 4 to 7 are written by thread 5, and 8 to 11 by a copy of thread 6; all have met."""
    memory = written_by(5)
    memory.land(memory.begin_copy(offsets(8), 4, threads(6)), WRITE, threads(6))
    memory.barrier()
    yield memory


def test_a_product_reads_what_its_writers_have_fenced(to_multiply: SharedMemory):
    """Bytes that nothing has written need no fence; one behind the barrier is for all that was before it."""
    group, index = 2 * OWNER, np.arange(16).reshape(2, 8)
    assert to_multiply.product_reads(index[:, 4:] * 0, group).tolist() == [[0] * 4] * 2
    with pytest.raises(MemoryFault, match="without a proxy fence between"):
        to_multiply.product_reads(index, group)
    to_multiply.fence(threads(5))
    found = to_multiply.product_reads(index, group)
    assert found.reshape(-1).tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0]


def test_a_fence_before_the_barrier_is_one_of_the_writers():
    memory = written_by(5)
    memory.fence(threads(6))
    with pytest.raises(MemoryFault, match="without a proxy fence"):
        memory.product_reads(np.arange(4, 8), 2 * OWNER)
    memory.fence(threads(4, 5))
    memory.barrier()
    assert memory.product_reads(np.arange(4, 8), 2 * OWNER).tolist() == [1, 2, 3, 4]
    with pytest.raises(MemoryFault, match="another thread has read"):
        memory.store(offsets(4), WRITE, threads(5))
