"""Fibers: one at a time, each where it was, and none left behind."""

import pytest

from tests.simulation.fibers import Fiber


def test_they_take_turns():
    said: list[str] = []
    fibers: dict[str, Fiber] = {}

    def say(name: str) -> None:
        for number in range(3):
            said.append(f"{name}{number}")
            fibers[name].pause()

    fibers["a"], fibers["b"] = Fiber(lambda: say("a")), Fiber(lambda: say("b"))
    assert not said
    for name in "aabab":
        fibers[name].resume()
    assert said == ["a0", "a1", "b0", "a2", "b1"]
    fibers["a"].resume()
    assert fibers["a"].done and not fibers["b"].done
    fibers["b"].abandon()


def test_what_one_raises_reaches_the_fiber_that_waits_for_it():
    def fail() -> None:
        raise ValueError("no")

    fiber = Fiber(fail)
    with pytest.raises(ValueError, match="no"):
        fiber.resume()
    assert fiber.done
    fiber.abandon()


def test_nothing_is_left_of_one_that_is_abandoned():
    """It may clean up; one that never began needs not."""
    cleaned = []

    def wait() -> None:
        try:
            fiber.pause()
        finally:
            cleaned.append(True)

    fiber = Fiber(wait)
    fiber.resume()
    fiber.abandon()
    Fiber(wait).abandon()
    assert cleaned == [True]
