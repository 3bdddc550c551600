"""Words that threads share: the instructions give what a single thread expects, and lose nothing when several
threads use them at once."""

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.isa import atomics  # noqa: E402
from kernels.cpu.isa.vectors import read_i64, write_i64  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

THREADS, TURNS = 4, 20_000


def each_operation(words: int, out: int) -> None:
    """What is returned goes to `out`."""
    write_i64(out, atomics.read(words))
    atomics.write(words, -5)
    write_i64(out + 8, atomics.add(words, 7))
    write_i64(out + 16, atomics.add(words, -100))
    write_i64(out + 24, int(atomics.replace(words, -98, 1 << 62)))
    write_i64(out + 32, int(atomics.replace(words, -98, 3)))
    write_i64(out + 40, atomics.add(words + 8, 1))
    atomics.pause()


def test_compiled_code_is_python():
    """A word changes alone; additions wrap around."""
    results: list[Any] = []
    machine = compiled(each_operation)
    for function in (machine, each_operation):
        words, out = np.array([12, 41, 9]), np.zeros(6, np.int64)
        function(words.ctypes.data, out.ctypes.data)
        results.append((words.tolist(), out.tolist()))
    assert results[0] == results[1] == ([1 << 62, 42, 9], [12, -5, 2, 1, 0, 41])


def count_up(words: int, turns: int) -> None:
    """A sum, and one by compare and swap that is tried until it succeeds."""
    for _ in range(turns):
        atomics.add(words, 1)
        while True:
            before = atomics.read(words + 64)
            if atomics.replace(words + 64, before, before + 3):
                break


def test_nothing_is_lost_between_threads():
    words, machine = np.zeros(16, np.int64), compiled(count_up)
    threads = [threading.Thread(target=machine, args=(words.ctypes.data, TURNS)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words[0] == THREADS * TURNS and words[8] == 3 * THREADS * TURNS and np.count_nonzero(words) == 2


def wait_for(words: int) -> int:
    """Sleeps while the word is 0. Returns the word beside it, which was written before."""
    atomics.add(words + 128, 1)
    while atomics.read(words) == 0:
        atomics.sleep_while(words, 0)
    return read_i64(words + 64)


def wake(words: int, value: int) -> None:
    write_i64(words + 64, value)
    atomics.write(words, 1)
    atomics.wake_all(words)


def test_sleeping_threads_wake_up_and_see_what_was_written():
    """All of them; one that comes later does not sleep."""
    words, found = np.zeros(32, np.int64), []
    waits, wakes = compiled(wait_for), compiled(wake)
    threads = [
        threading.Thread(target=lambda: found.append(waits(words.ctypes.data))) for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    while words[16] < THREADS:
        threading.Event().wait(0.001)
    assert found == []
    wakes(words.ctypes.data, 77)
    for thread in threads:
        thread.join()
    assert found == [77] * THREADS and waits(words.ctypes.data) == 77


def yields(words: int, turns: int) -> None:
    for _ in range(turns):
        atomics.yield_core()
        atomics.add(words, 1)


def test_a_core_that_is_yielded_comes_back():
    words = np.zeros(1, np.int64)
    compiled(yields)(words.ctypes.data, 50)
    assert words[0] == 50
