"""Code that does not end by itself is ended, and nothing else is hit."""

import threading
import time

import pytest

from frontend.templates.watchdog import TimeLimitExceeded, Watchdog
from tests.patience import PATIENCE_S


def spin(seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_function_in_time_returns_its_value():
    assert Watchdog().call(lambda: 7, 60) == 7


def test_its_own_exception_passes():
    with pytest.raises(ZeroDivisionError):
        Watchdog().call(lambda: 1 // 0, 60)


def test_an_endless_loop_ends():
    with pytest.raises(TimeoutError):
        Watchdog().call(lambda: spin(10**9), 0.05)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_ends_although_a_finalizer_has_swallowed_the_exception():
    swallowed = []

    class Finalized:
        def __del__(self) -> None:
            try:
                spin()
            finally:
                swallowed.append(True)

    def late() -> None:
        Finalized()
        spin(10**9)

    with pytest.raises(TimeoutError):
        Watchdog().call(late, 0.05)
    assert swallowed


def test_a_thread_that_waits_is_not_late():
    watchdog, is_late = Watchdog(), threading.Event()

    def spin_elsewhere() -> None:
        with pytest.raises(TimeoutError):
            watchdog.call(spin, 0.05)
        is_late.set()

    other = threading.Thread(target=spin_elsewhere)
    other.start()
    assert watchdog.call(is_late.wait, 0.05)
    other.join()


def test_it_ends_in_other_threads_too_and_several_at_once():
    watchdog = Watchdog()
    ended = []

    def run(seconds: float) -> None:
        try:
            watchdog.call(spin, seconds)
        except TimeoutError:
            ended.append(seconds)

    threads = [threading.Thread(target=run, args=(0.02 * (place + 1),)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ended) == [0.02, 0.04, 0.06, 0.08]


def test_functions_that_end_at_their_limit_leave_nothing_behind():
    """The exception may be on its way when the function returns: it must not hit the next one."""
    watchdog = Watchdog()
    outcomes = set()
    for round_ in range(300):
        limit = 0.0002 + round_ * 1e-6

        def work(limit: float = limit) -> int:
            spin(limit)
            return 1

        try:
            outcomes.add(watchdog.call(work, limit))
        except TimeoutError:
            outcomes.add("late")
        assert sum(range(200)) == 19900  # bytecodes in which a stray exception would show
    assert outcomes <= {1, "late"}


def test_a_limit_that_has_passed_already():
    with pytest.raises(TimeoutError):
        Watchdog().call(spin, 0.0)


class InterruptedCondition:
    """A condition in which the time limit strikes right after the lock was taken, at the nth time."""

    def __init__(self, condition: threading.Condition, strikes_at: int) -> None:
        self._condition = condition
        self._left = strikes_at

    def __enter__(self) -> None:
        self._condition.__enter__()
        self._left -= threading.current_thread() is threading.main_thread()
        if self._left == 0:
            self._left = -1
            raise TimeLimitExceeded

    def __exit__(self, *error) -> None:
        self._condition.__exit__(*error)

    def __getattr__(self, name: str):
        return getattr(self._condition, name)


@pytest.mark.parametrize("strikes_at", [1, 2])
def test_a_limit_that_strikes_while_the_lock_is_taken_releases_it(strikes_at):
    """Once the lock leaked, every later call waited forever, and all prompts went to processes."""
    watchdog = Watchdog()
    watchdog._changed = InterruptedCondition(watchdog._changed, strikes_at)
    with pytest.raises(TimeoutError):
        watchdog.call(lambda: 1, 60)
    results = []
    other = threading.Thread(target=lambda: results.append(watchdog.call(lambda: 2, 60)), daemon=True)
    other.start()
    other.join(PATIENCE_S)
    assert results == [2]
