"""What threads tell one another in their progress words: Python runs the functions here, as one
thread."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.runtime.straggler_recovery import (  # noqa: E402
    PATIENCE,
    SPINS,
    first_and_count,
    is_behind,
    lost_patience,
    progress_word,
    take_over,
    units_of_another,
    was_in_time,
)

pytestmark = pytest.mark.cpu_kernels
LINE = 8
"""Words of 64 bits in a cache line."""
TOO_MANY = 1 << 20


class Words:
    """A progress word for each thread, in a cache line of its own, and the number of stragglers."""

    def __init__(self, *words: int) -> None:
        self.memory = np.zeros((len(words) + 1, LINE), np.int64)
        self.memory[: len(words), 0] = words

    @property
    def progress(self) -> int:
        return self.memory.ctypes.data

    def at(self, thread: int) -> int:
        return self.progress + 64 * thread

    @property
    def late(self) -> int:
        return self.at(len(self.memory) - 1)

    def word(self, thread: int) -> int:
        return int(self.memory[thread, 0])


@pytest.mark.parametrize("index", [0, 1, 2000, 0x3FFFFD])
@pytest.mark.parametrize(("unit", "count"), [(0, 1), (5, 3), (TOO_MANY - 2, 1), (0, TOO_MANY - 1)])
def test_a_word_says_which_units_of_which_record(index: int, unit: int, count: int):
    word = progress_word(index, unit, count)
    assert first_and_count(word) == (unit, count) and word >> 40 == index + 1
    assert 0 < word < 1 << 62, "the highest bits are for other marks"


@pytest.mark.parametrize(("unit", "count"), [(TOO_MANY, 1), (TOO_MANY - 1, 1), (1 << 21, 4), (0, TOO_MANY)])
def test_units_that_do_not_fit_are_not_computed_by_others(unit: int, count: int):
    """The word names the record only: the thread is behind, and no other one can help."""
    word = progress_word(3, unit, count)
    assert word == progress_word(3, 0, 0) == 4 << 40
    words = Words(0, word)
    assert units_of_another(words.progress, 0, 2, 3) == 0 and is_behind(words.at(1), 3)


def test_units_of_another_thread():
    """Of the same record, not its own; of several the first thread's."""
    words = Words(
        progress_word(7, 1, 1), progress_word(6, 2, 1), progress_word(7, 3, 2), progress_word(7, 5, 1)
    )
    assert units_of_another(words.progress, 0, 4, 7) == words.at(2)
    assert units_of_another(words.progress, 2, 4, 7) == words.at(0)
    assert units_of_another(words.progress, 0, 2, 7) == 0, "only so many threads"
    assert units_of_another(words.progress, 0, 4, 6) == words.at(1)
    assert units_of_another(words.progress, 0, 4, 5) == 0


def test_the_first_to_finish_marks_the_units_done():
    """Of a thread and another one that computed the same, exactly one has been in time."""
    word = progress_word(2, 4, 3)
    words = Words(word)
    words.memory[1, 0] = 1
    assert take_over(words.at(0), word), "the other thread is first"
    assert not take_over(words.at(0), word), "once"
    assert first_and_count(words.word(0)) == (4, 3) and words.word(0) != word
    assert units_of_another(words.progress, 9, 1, 2) == 0, "they are not computed a third time"
    assert is_behind(words.at(0), 2), "the late thread has not left them"
    assert not was_in_time(words.at(0), word, words.late)
    assert words.word(0) == 0 and words.word(1) == 0, "it is late no longer"


def test_a_thread_in_time_is_no_straggler():
    word = progress_word(2, 4, 3)
    words = Words(word)
    words.memory[1, 0] = 5
    assert was_in_time(words.at(0), word, words.late)
    assert words.word(0) == 0 and words.word(1) == 5
    assert not take_over(words.at(0), word), "too late for the other one"


@pytest.mark.parametrize("done", [False, True])
def test_threads_behind_a_record(done: bool):
    """One that computes it, or one before it, also where another thread has finished its units."""
    word = progress_word(10, 0, 1)
    words = Words(word)
    if done:
        assert take_over(words.at(0), word)
    assert [is_behind(words.at(0), index) for index in (8, 9, 10, 11, 400)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_an_idle_thread_is_not_behind():
    words = Words(0)
    assert not is_behind(words.at(0), 0) and not is_behind(words.at(0), 1 << 20)
    assert not is_behind(Words(progress_word(0, 0, 1)).at(0), -1), "no record is before the first"


def test_patience_is_lost_now_and_then():
    """Each time after so many looks; behind a yield always."""
    lost = [spins for spins in range(SPINS) if lost_patience(spins)]
    assert lost == list(range(PATIENCE - 1, SPINS, PATIENCE)) and lost
    assert all(lost_patience(spins) for spins in range(SPINS, SPINS + 5))
