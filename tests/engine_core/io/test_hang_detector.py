"""Detection of hangs, in simulated time."""

import pytest

from engine_core.io.rank import LOADING_PATIENCE_S, HangDetector
from pagewire.host.proc_stat import Vitals

PATIENCE, LOOK = 3.0, 0.25
ASLEEP, STOPPED = Vitals("S", 1.0, 0.0), Vitals("T", 1.0, 0.0)


def loaded(seconds_per_token: float = 0.0) -> HangDetector:
    watch = HangDetector(PATIENCE)
    watch.loaded(seconds_per_token)
    return watch


def seconds_until_it_hangs(watch: HangDetector, vitals: Vitals | None = None, *, share: float = 0.0) -> float:
    """share: of a core, on which it computes. Infinite if it does not hang within 10,000 s."""
    cpu_s = 1.0
    for number in range(1, 40_001):
        if vitals is not None and share:
            cpu_s += share * LOOK
            vitals = Vitals("R", cpu_s, vitals.starved_s)
        if watch.look(LOOK, vitals):
            return number * LOOK
    return float("inf")


@pytest.mark.parametrize("vitals", [None, ASLEEP, STOPPED], ids=["elsewhere", "asleep", "stopped"])
def test_a_step_that_does_not_end(vitals: Vitals | None) -> None:
    watch = loaded()
    watch.sent(1)
    assert seconds_until_it_hangs(watch, vitals) == PATIENCE


def test_time_begins_with_each_step() -> None:
    """Two plans are under way; the second one has not begun before the first one ends."""
    watch = loaded()
    watch.sent(1)
    watch.sent(1)
    for _ in range(11):
        assert not watch.look(LOOK, ASLEEP)
    watch.ended(2.75)
    assert seconds_until_it_hangs(watch, ASLEEP) > PATIENCE


def test_an_idle_worker_owes_nothing() -> None:
    watch = loaded()
    assert seconds_until_it_hangs(watch, ASLEEP) == seconds_until_it_hangs(watch) == float("inf")
    watch.sent(1)
    watch.ended(0.01)
    assert seconds_until_it_hangs(watch, ASLEEP) == float("inf")


def test_an_idle_worker_that_was_stopped() -> None:
    assert seconds_until_it_hangs(loaded(), STOPPED) == PATIENCE


def test_a_large_prompt_may_take_long() -> None:
    """As measured while loading, then as in the steps."""
    watch = loaded(0.001)
    watch.sent(2000)
    assert watch.limit == 40.0
    watch.ended(4.0)
    watch.sent(1000)
    assert watch.limit == pytest.approx(40.0)
    watch.ended(2.0)
    watch.sent(1)
    assert watch.limit == PATIENCE, "a small step is none of them"


def test_the_limit_follows_the_slowest_small_step() -> None:
    watch = loaded()
    watch.sent(1)
    watch.ended(0.5)
    watch.sent(1)
    assert watch.limit == 10.0
    for _ in range(300):
        watch.ended(0.01)
        watch.sent(1)
    assert watch.limit == PATIENCE, "the slow one is forgotten"


@pytest.mark.parametrize("tokens", [1, 8, 63, 64, 256, 2048])
def test_ten_times_slower_from_one_step_to_the_next_is_no_hang(tokens: int) -> None:
    """For steps that take longer than the patience."""
    watch = loaded()
    for _ in range(3):
        watch.sent(tokens)
        watch.ended(1.0)
    watch.sent(tokens)
    assert seconds_until_it_hangs(watch, ASLEEP) > 10.0


def test_a_rank_that_computes_gets_more_time() -> None:
    """A first long prompt, of which nothing was measured."""
    watch = loaded()
    watch.sent(100_000)
    assert seconds_until_it_hangs(watch, ASLEEP, share=0.9) == 5 * PATIENCE


def test_a_rank_that_has_stopped_computing_gets_no_more_time() -> None:
    watch = loaded()
    watch.sent(1)
    for number in range(20):
        assert not watch.look(LOOK, Vitals("R", number * LOOK, 0.0))
    assert seconds_until_it_hangs(watch, Vitals("S", 20 * LOOK, 0.0)) == pytest.approx(1.0, abs=LOOK)


def test_time_without_a_processor_core_does_not_count() -> None:
    watch = loaded()
    watch.sent(1)
    starved = [Vitals("R", 1.0 + 0.001 * number, 0.95 * LOOK * number) for number in range(200)]
    assert not any(watch.look(LOOK, vitals) for vitals in starved)


def test_a_worker_that_loads_must_do_something() -> None:
    assert seconds_until_it_hangs(HangDetector(PATIENCE), ASLEEP) == LOADING_PATIENCE_S
    assert seconds_until_it_hangs(HangDetector(PATIENCE), ASLEEP, share=0.2) == float("inf")
    assert seconds_until_it_hangs(HangDetector(PATIENCE), Vitals("D", 1.0, 0.0)) == float("inf")
    watch = HangDetector(PATIENCE)
    for _ in range(400):
        watch.heard()
        assert not watch.look(LOADING_PATIENCE_S / 2, ASLEEP)


def test_a_worker_that_is_stopped_while_it_loads() -> None:
    assert seconds_until_it_hangs(HangDetector(PATIENCE), STOPPED) == PATIENCE
    watch = HangDetector(PATIENCE)
    for vitals in [STOPPED, ASLEEP] * 50:
        assert not watch.look(LOOK, vitals), "it goes on each time"


def test_a_remote_worker_is_not_judged_while_it_loads() -> None:
    assert seconds_until_it_hangs(HangDetector(PATIENCE), None) == float("inf")


def test_with_patience_0_nothing_hangs() -> None:
    watch = HangDetector(0.0)
    assert seconds_until_it_hangs(watch, STOPPED) == float("inf")
    watch.loaded(0.0)
    watch.sent(1)
    assert seconds_until_it_hangs(watch, STOPPED) == float("inf")


def test_the_first_step_that_encodes_may_compute_for_as_long_as_it_takes() -> None:
    """An image is encoded whole, on a slow machine for minutes. A rank that was stopped, or waits, is found,
    and limits of later steps are what they were."""
    for vitals in (ASLEEP, STOPPED):
        watch = loaded()
        watch.sent(300, [5000])
        assert seconds_until_it_hangs(watch, vitals) == PATIENCE
    watch = loaded()
    watch.sent(300, [5000])
    assert seconds_until_it_hangs(watch, ASLEEP, share=1.0) == float("inf")
    watch.ended(10_000.0, 10_000.0)
    for num_tokens in (1, 2048):
        watch.sent(num_tokens)
        assert seconds_until_it_hangs(watch, ASLEEP) == PATIENCE
        watch.ended(0.0)


def test_a_later_step_that_encodes_has_a_limit() -> None:
    """By what the largest image has taken; of a larger one, with the square of its size."""
    watch = loaded()
    watch.sent(1, [1000, 500])
    watch.ended(1.5, 1.5)
    watch.sent(1, [1000])
    assert watch.limit == pytest.approx(20 * 1.0)
    assert seconds_until_it_hangs(watch, ASLEEP, share=1.0) == pytest.approx(100.0)
    watch.ended(0.5, 0.5)
    watch.sent(1, [3000, 1000])
    assert watch.limit == pytest.approx(20 * 4 * 3 * 0.99)
    watch.ended(1.0, 1.0)
    watch.sent(1)
    assert watch.limit == PATIENCE


def test_a_step_that_encodes_says_what_its_tokens_take() -> None:
    watch = loaded()
    watch.sent(1000, [1000])
    watch.ended(9.0, 7.0)
    watch.sent(500)
    assert watch.limit == pytest.approx(20 * 1.0)


def test_the_first_encoding_of_a_process_that_is_not_seen_has_ten_minutes() -> None:
    watch = loaded()
    watch.sent(300, [5000])
    assert seconds_until_it_hangs(watch, None) == 600.0
    watch.ended(100.0, 90.0)
    watch.sent(300, [5000])
    assert seconds_until_it_hangs(watch, None) == pytest.approx(watch.limit)


def test_an_encoding_for_which_memory_did_not_suffice_says_nothing() -> None:
    """The worker says that it took no time."""
    watch = loaded()
    watch.sent(1, [5000])
    watch.ended(0.01, 0.0)
    watch.sent(1, [5000])
    assert seconds_until_it_hangs(watch, ASLEEP, share=1.0) == float("inf")
