"""Health is what the loop itself says."""

import pytest

from pagewire.telemetry import pages
from pagewire.telemetry.board import Board
from pagewire.telemetry.pages import Answer, Pages


async def statuses(of: Pages) -> tuple[int, int]:
    return (await of.answer("/healthz", "")).status, (await of.answer("/readyz", "")).status


async def test_a_process_that_starts_is_healthy_and_not_ready():
    assert await statuses(Pages(Board("x"))) == (200, 503)


@pytest.mark.parametrize(("serves", "expected"), [(True, (200, 200)), (False, (200, 503))])
async def test_a_loop_that_turns_says_whether_it_serves(serves: bool, expected: tuple[int, int]):
    of = Pages(Board("x"))
    of.begin(lambda answer: answer(serves))
    assert await statuses(of) == expected


async def test_a_loop_that_does_not_turn_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """However often the page is requested, the loop is asked once at a time; it recovers when the loop
    does."""
    monkeypatch.setattr(pages, "LOOP_PATIENCE_S", 0.01)
    asked: list[Answer] = []
    of = Pages(Board("x"), asked.append)
    assert await statuses(of) == (503, 503)
    assert await statuses(of) == (503, 503)
    (answer,) = asked
    answer(True)
    monkeypatch.setattr(pages, "LOOP_PATIENCE_S", 60.0)
    assert (await of.answer("/healthz", "")).status == 200


def test_a_supervisor_waits_for_a_child_that_waits_for_its_loop():
    assert pages.CHILD_PATIENCE_S > pages.LOOP_PATIENCE_S


async def test_there_are_three_pages():
    assert (await Pages(Board("x")).answer("/metrics/", "")).status == 404
