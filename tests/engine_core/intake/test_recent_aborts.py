"""Aborted ids, and how long they are remembered."""

import pytest

from engine_core.intake import intake
from engine_core.intake.intake import KEPT_S, RecentAborts


def test_a_request_that_is_older_than_the_abort_is_found():
    aborted = RecentAborts()
    aborted.add("x", 10.0)
    assert aborted.includes("x", 9.0) and aborted.includes("x", 10.0)
    assert not aborted.includes("x", 10.1) and not aborted.includes("y", 9.0)
    aborted.add("x", 20.0)
    assert aborted.includes("x", 15.0) and len(aborted) == 1


def test_it_is_forgotten_with_time():
    aborted = RecentAborts()
    aborted.add("x", 10.0)
    aborted.add("y", 10.0 + KEPT_S)
    assert len(aborted) == 2
    aborted.add("z", 10.1 + KEPT_S)
    assert not aborted.includes("x", 0.0) and aborted.includes("y", 0.0)


def test_a_flood_of_one_tenant_forgets_only_its_own(monkeypatch: pytest.MonkeyPatch):
    """All tenants once shared one list, which a flood of ids that no request has emptied."""
    monkeypatch.setattr(intake, "MOST", 4)
    monkeypatch.setattr(intake, "MOST_IN_ALL", 6)
    aborted = RecentAborts()
    aborted.add("bob/x", 1.0)
    for place in range(100):
        aborted.add(f"alice/{place}", 2.0)
    assert aborted.includes("bob/x", 0.0) and aborted.includes("alice/99", 0.0)
    assert not aborted.includes("alice/1", 0.0) and len(aborted) == 5
    for tenant in "cd":
        aborted.add(f"{tenant}/x", 3.0)
    assert not aborted.includes("bob/x", 0.0), "it is the one that has aborted nothing for longest"
    assert len(aborted) == 6
    aborted.add("e/x", 3.0 + KEPT_S)
    assert len(aborted) == 3 and not aborted.includes("alice/99", 0.0)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "MOST", 3)
    aborted = RecentAborts()
    for name in "abcab":
        aborted.add(name, 1.0)
    aborted.add("d", 1.0)
    assert len(aborted) == 3 and not aborted.includes("c", 0.0)
    assert all(aborted.includes(name, 0.0) for name in "abd")
