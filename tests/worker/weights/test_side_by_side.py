"""Work on several threads: what is yielded, in which order it begins, and how it ends."""

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.patience import PATIENCE_S
from worker.weights.loader import Work, one_thread_each, run_side_by_side


def counting(*counts: int) -> Work:
    return lambda: iter(counts)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_everything_is_yielded(num_threads: int):
    """Of all works, more than there are threads; some yield nothing."""
    works = [counting(1, 2), counting(), counting(4), counting(8, 16, 32), counting()]
    assert sorted(run_side_by_side(works, num_threads)) == [1, 2, 4, 8, 16, 32]


def test_no_work():
    assert list(run_side_by_side([], 3)) == []


def test_one_thread_keeps_the_order():
    works = [counting(number, number) for number in range(5)]
    assert list(run_side_by_side(works, 1)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_several_run_at_once():
    """Each waits for the other one, on a thread that says what it is for."""
    barrier, names = threading.Barrier(2), set()

    def work() -> Iterator[int]:
        barrier.wait(PATIENCE_S)
        names.add(threading.current_thread().name)
        yield 1

    assert list(run_side_by_side([work, work], 2)) == [1, 1]
    assert len(names) == 2 and all(name.startswith("weights") for name in names)


def test_the_first_failure_ends_all():
    """Its exception is raised, and works that have not begun never begin."""
    begun, never = [], threading.Event()

    def fail() -> Iterator[int]:
        yield 1
        raise KeyError("wrong")

    def later() -> Iterator[int]:
        begun.append(True)
        never.wait(0.05)
        yield 2

    found = run_side_by_side([fail, *[later] * 200], 1)
    assert next(found) == 1
    with pytest.raises(KeyError, match="wrong"):
        next(found)
    assert len(begun) < 200


def test_works_end_where_the_listener_ends():
    """At their next step; the listener waits for them."""
    both, ended = threading.Barrier(2), []

    def endless() -> Iterator[int]:
        both.wait(PATIENCE_S)
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    found = run_side_by_side([endless, endless], 2)
    assert next(found) == 1
    found.close()  # type: ignore[attr-defined]
    assert ended == [True, True]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]


@pytest.mark.parametrize("inference", [False, True])
def test_threads_are_in_the_mode_of_the_listener(inference: bool):
    """Tensors of inference cannot be changed elsewhere, and others cannot be made here."""
    seen = []

    def work() -> Iterator[int]:
        seen.append(torch.is_inference_mode_enabled())
        yield torch.zeros(3).numel()

    with torch.inference_mode(inference):
        assert list(run_side_by_side([work], 1)) == [3]
    assert seen == [inference]


def test_torch_starts_no_threads_of_its_own():
    """And has as many as before behind it, after an exception too."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread_each():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyError), one_thread_each():
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
