"""What was aborted, and how long that is remembered."""

import pytest

from engine_core.intake import recent_aborts as aborted_ids
from engine_core.intake.recent_aborts import KEPT_S, AbortedIds


def test_who_is_older_than_the_abort_is_hit():
    aborted = AbortedIds()
    aborted.add("x", 10.0)
    assert aborted.hit("x", 9.0) and aborted.hit("x", 10.0)
    assert not aborted.hit("x", 10.1) and not aborted.hit("y", 9.0)
    aborted.add("x", 20.0)
    assert aborted.hit("x", 15.0) and len(aborted) == 1


def test_it_is_forgotten_with_time():
    aborted = AbortedIds()
    aborted.add("x", 10.0)
    aborted.add("y", 10.0 + KEPT_S)
    assert len(aborted) == 2
    aborted.add("z", 10.1 + KEPT_S)
    assert not aborted.hit("x", 0.0) and aborted.hit("y", 0.0)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aborted_ids, "MOST", 3)
    aborted = AbortedIds()
    for name in "abcab":
        aborted.add(name, 1.0)
    aborted.add("d", 1.0)
    assert len(aborted) == 3 and not aborted.hit("c", 0.0)
    assert all(aborted.hit(name, 0.0) for name in "abd")
