"""When a slot restarts its process, and when it gives up."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pagewire.supervisor import restart_slot, standbys
from pagewire.supervisor.restart_slot import RestartSlot


class FakeChild:
    """A process that is never there."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        fork: Callable[..., Any] | None = None,
        fork_worker: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.arguments, self.fork_worker = name, arguments, fork_worker
        self.forked_by: FakeChild | None = None
        if fork is not None:
            with contextlib.suppress(OSError):
                self.forked_by, _ = fork(arguments, 0)
        self.facts: dict[str, int] | None = None
        self.is_lost = self.is_active = self.after_kill = self.stands_by = False
        self.is_closed = self.was_killed_from_outside = self.refuses = False
        self.kept: FakeWorkers | None = None
        self.leaves: FakeWorkers | None = None

    def activate(self, *, after_kill: bool = False, kept: "FakeWorkers | None" = None) -> None:
        """See Child."""
        self.is_active, self.after_kill, self.kept = True, after_kill, kept

    @property
    def can_fork(self) -> bool:
        """See Child."""
        return self.stands_by and not self.is_lost

    def fork(self, *_: object) -> "tuple[FakeChild, int]":
        """See Child."""
        if self.refuses:
            raise OSError("killed a moment ago")
        return self, 0

    def leave_workers(self) -> "FakeWorkers | None":
        """See Child."""
        return self.leaves

    def close(self) -> None:
        """See Child."""
        self.is_closed = True


class FakeWorkers:
    """Workers that were kept."""

    is_closed = False

    def close(self) -> None:
        """See WorkerProcesses."""
        self.is_closed = True


@pytest.fixture(autouse=True)
def fake_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_slot, "Child", FakeChild)
    monkeypatch.setattr(standbys, "Child", FakeChild)


def pauses(max_deaths: int, *times: float, longest: float = 10.0) -> list[float | None]:
    """Returns the pauses after deaths at these times; None: no restart follows."""
    slot, found = RestartSlot("x", ["a"], max_deaths, longest), []
    for now in times:
        child = slot.start()
        assert (child.name, child.arguments) == ("x", ["a"])
        found.append(slot.start_at - now if slot.died(now) else None)
    return found


def test_pauses_grow_while_deaths_come_close_together():
    assert pauses(9, *range(8)) == [0, 0.5, 1, 2, 4, 8, 10, 10]


def test_pauses_are_bounded():
    assert pauses(9, *range(6), longest=1.5) == [0, 0.5, 1, 1.5, 1.5, 1.5]
    assert pauses(9, *range(3), longest=0) == [0, 0, 0]


def test_too_many_deaths_within_a_minute():
    assert pauses(5, 0, 1, 2, 3, 59.9) == [0, 0.5, 1, 2, None]
    assert pauses(1, 0) == [None]


def test_deaths_leave_the_window_after_a_minute():
    assert pauses(5, 0, 1, 2, 3, 63.0) == [0, 0.5, 1, 2, 0]


def test_an_outage_lasts_until_a_process_is_ready():
    """Attempts that fail to become ready are part of the outage."""
    slot = RestartSlot("x", [], 5, 10.0)
    slot.start()
    slot.died(3.0)
    slot.start()
    slot.died(4.0)
    assert slot.down_since == 3.0


def test_explained_deaths_do_not_count():
    """Up to a bound: until then restarts have no pause, and the service does not give up."""
    slot, found = RestartSlot("x", [], 3, 10.0), []
    for number in range(restart_slot.MOST_EXPLAINED + 4):
        slot.start()
        found.append(slot.start_at - number if slot.died(number, explained=number > 0) else None)
    assert found == [0.0] * (restart_slot.MOST_EXPLAINED + 1) + [0.5, None, None]


def test_kills_from_outside_never_count():
    """Without a pause where the process had been ready, with one where it was killed while it started."""
    slot = RestartSlot("x", [], 2, 10.0)
    for number in range(100):
        slot.start().facts = {}
        assert slot.died(number / 10, from_outside=True) and slot.start_at == number / 10
    pauses = []
    for number in range(200, 204):
        slot.start()
        assert slot.died(number, from_outside=True)
        pauses.append(slot.start_at - number)
    assert pauses == [0.0, 0.5, 0.5, 0.5], "they say nothing about the next process"


def test_a_start_that_the_system_refuses_is_no_death(monkeypatch: pytest.MonkeyPatch):
    """The pause doubles up to its bound, and starts over after a process has started."""
    slot = RestartSlot("x", [], 2, 3.0)
    assert [slot.postpone(10.0) for _ in range(5)] == [0.5, 1, 2, 3, 3]
    assert slot.start_at == 13.0
    slot.start()
    assert slot.postpone(20.0) == 0.5
    assert slot.died(21.0)


@pytest.mark.parametrize("has_standby", [False, True])
def test_the_next_process_gets_the_workers_that_are_left(has_standby: bool):
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    child, left = slot.start(), FakeWorkers()
    child.facts, child.leaves = {}, left
    if has_standby:
        assert start_standbys(slot, 0.0)
    slot.died(1.0, killed=True)
    assert slot.start().kept is left and not left.is_closed
    slot.died(2.0)
    assert slot.start().kept is None


def test_workers_that_no_process_takes_over_are_ended():
    """The service ends before the next process is started."""
    slot = RestartSlot("x", [], 5, 10.0)
    child, left = slot.start(), FakeWorkers()
    child.leaves = left
    slot.died(1.0, killed=True)
    slot.close()
    assert left.is_closed


def ready_slot(num_standbys: int) -> RestartSlot:
    """A role whose first process is ready."""
    slot = RestartSlot("x", ["a"], 99, 10.0, num_standbys=num_standbys)
    slot.start().facts = {}
    return slot


def start_standbys(slot: RestartSlot, now: float) -> list[FakeChild]:
    """Starts those that are due now, one after another, each of which imports at once; returns them."""
    started = []
    while (due := slot.due_standbys(now)) is not None:
        standby = due.start(now)
        started.append(standby)
        assert slot.due_standbys(now) is None, "one after another"
        standby.stands_by = True
    return started


def test_standbys_are_started_once_the_process_is_ready():
    """The first one imports, the others are forked by it."""
    slot = RestartSlot("x", ["a"], 5, 10.0, num_standbys=3)
    child = slot.start()
    assert child.forked_by is None and slot.due_standbys(0.0) is None
    child.facts = {}
    first, second, third = start_standbys(slot, 0.0)
    assert first.name == "standby of the x" and first.arguments == ["a", "--standby"]
    assert first.forked_by is None and second.forked_by is third.forked_by is first


def test_a_standby_forks_what_fills_the_role_again_and_again():
    """It stays a standby; the process is told whether its predecessor was killed."""
    slot = ready_slot(1)
    (standby,) = start_standbys(slot, 0.0)
    for number, killed in enumerate([True, False, True]):
        slot.died(float(number), killed=killed)
        child = slot.start()
        assert child.forked_by is standby and child.arguments == ["a"] and child.is_active
        assert child.after_kill is killed
        child.facts = {}
    assert start_standbys(slot, 9.0) == []


def test_a_process_that_is_killed_while_it_starts_leaves_the_journal_of_the_last_one():
    """The next one isolated all requests in groups of an eighth, as if one of them had failed: streams of a
    busy machine got nothing for up to 13 s."""
    slot = ready_slot(1)
    slot.died(1.0, killed=True, from_outside=True)
    for now in (2.0, 3.0):
        assert slot.start().after_kill
        slot.died(now, from_outside=True)
    child = slot.start()
    assert child.after_kill
    child.facts = {}
    slot.died(4.0)
    assert not slot.start().after_kill, "it has failed"


def test_a_worker_is_forked_by_standbys_with_its_arguments():
    """Which are known from when the process has asked for one."""
    slot = RestartSlot("x", ["a"], 5, 10.0, num_standbys=1, worker_standby="--standby=auto")
    child = slot.start()
    child.facts = {}
    (own,) = start_standbys(slot, 0.0)
    with pytest.raises(OSError, match="no worker of the x can be forked"):
        child.fork_worker(["worker", "--rank=0"], 0)
    assert own.arguments == ["a", "--standby"]
    (of_worker,) = start_standbys(slot, 0.0)
    assert of_worker.arguments == ["worker", "--rank=0", "--standby=auto"]
    assert of_worker.name == "standby of the worker of the x"
    assert child.fork_worker(["worker", "--rank=0"], 0) == (of_worker, 0)


def test_a_standby_that_has_just_been_killed_is_passed_over():
    """The next one forks, and only where there is none is a process started with its imports."""
    slot = ready_slot(2)
    first, second = start_standbys(slot, 0.0)
    first.refuses = True
    slot.died(1.0, killed=True)
    assert slot.start().forked_by is second
    second.refuses = True
    slot.died(2.0, killed=True)
    assert slot.start().forked_by is None


def test_a_process_that_starts_imports_alone_unless_it_is_killed():
    """Where all died at once, both would be ready later; where starts are killed, standbys live on."""
    slot = ready_slot(1)
    (standby,) = start_standbys(slot, 0.0)
    standby.is_lost = standby.was_killed_from_outside = True
    slot.died(1.0, killed=True)
    slot.standbys[0].drop(standby, 1.0)
    slot.start()
    assert start_standbys(slot, 9.0) == []
    slot.died(10.0, from_outside=True)
    slot.start()
    assert len(start_standbys(slot, 11.0)) == 1
    slot.standbys[0].children[0].is_lost = True
    slot.standbys[0].drop(slot.standbys[0].children[0], 12.0)
    slot.child.facts = {}
    slot.recovered(13.0)
    slot.died(30.0)
    slot.start().facts = {}
    assert start_standbys(slot, 50.0) == [], "of the next outage again"
    slot.recovered(51.0)
    assert len(start_standbys(slot, 51.0)) == 1


def test_a_standby_is_replaced_while_nothing_serves():
    """An outage does not keep it waiting."""
    slot = ready_slot(2)
    first, _ = start_standbys(slot, 9.0)
    first.is_lost = first.was_killed_from_outside = True
    slot.died(20.0)
    slot.standbys[0].drop(first, 20.0)
    assert len(start_standbys(slot, 20.0)) == 1
    slot.start().facts = {}
    slot.recovered(21.0)
    assert len(slot.standbys[0].children) == 2


def test_a_standby_that_dies_is_replaced_at_once_if_it_was_killed_from_outside():
    """Otherwise after a pause: its successor may die as well, as for a lack of memory."""
    slot = ready_slot(2)
    first, second = start_standbys(slot, 0.0)
    first.is_lost = first.was_killed_from_outside = True
    slot.standbys[0].drop(first, 1.0)
    assert first.is_closed
    (third,) = start_standbys(slot, 1.0)
    assert third.forked_by is second
    second.is_lost = True
    slot.standbys[0].drop(second, 2.0)
    assert start_standbys(slot, 2.0 + standbys.PAUSE_S - 0.1) == []
    assert len(start_standbys(slot, 2.0 + standbys.PAUSE_S)) == 1


def test_pauses_grow_while_standbys_die_before_they_have_imported_everything():
    slot, now, pauses = ready_slot(1), 0.0, []
    (own,) = slot.standbys
    for imports in (False, False, False, True, False):
        assert slot.due_standbys(now) is own and slot.due_standbys(now - 0.1) is None
        standby = own.start(now)
        standby.stands_by = imports
        own.drop(standby, now)
        pauses.append(own.due - now)
        now = own.due
    assert pauses == [standbys.PAUSE_S * times for times in (1, 2, 4, 8, 1)]


def test_a_death_while_all_standbys_are_gone_starts_a_process():
    slot = ready_slot(2)
    for standby in start_standbys(slot, 0.0):
        standby.is_lost = True
    slot.died(1.0, explained=True, killed=True)
    child = slot.start()
    assert child.forked_by is None and child.is_active and child.after_kill


def test_a_slot_may_have_no_standby():
    slot = ready_slot(0)
    assert slot.due_standbys(100.0) is None and slot.standbys == () and not slot.has_standby


def test_all_processes_are_closed_in_the_end():
    slot = ready_slot(2)
    first, both = slot.child, start_standbys(slot, 0.0)
    slot.died(1.0)
    assert first.is_closed and slot.child is None
    second = slot.start()
    slot.close()
    assert second.is_closed and all(standby.is_closed for standby in both)


def test_a_standby_is_there_while_one_of_each_kind_can_fork():
    slot = RestartSlot("x", ["a"], 5, 10.0, num_standbys=2, worker_standby="--standby=auto")
    child = slot.start()
    child.facts = {}
    with contextlib.suppress(OSError):
        child.fork_worker(["worker"], 0)
    assert not slot.has_standby
    first, _, of_worker, other = start_standbys(slot, 0.0)
    assert slot.has_standby
    first.is_lost = of_worker.is_lost = True
    assert slot.has_standby, "one of two is enough"
    other.is_lost = True
    assert not slot.has_standby


def test_a_death_counts_for_a_minute():
    assert pauses(2, 0.0, restart_slot.WINDOW_S - 0.1) == [0, None]
    assert pauses(2, 0.0, restart_slot.WINDOW_S) == [0, 0]


def test_a_standby_that_the_system_refuses_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch):
    slot = ready_slot(1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(standbys, "Child", refuse)
    due = slot.due_standbys(5.0)
    assert due is not None and due.start(5.0) is None and not due.children
    assert slot.due_standbys(5.0 + standbys.PAUSE_S - 0.1) is None
    assert slot.due_standbys(5.0 + standbys.PAUSE_S) is due


def test_how_long_an_outage_was():
    """From the first death to when a process is ready; the next outage has a length of its own."""
    slot = ready_slot(0)
    assert slot.last_pause == 0 and slot.down_since is None
    slot.died(10.0)
    slot.start()
    slot.died(11.0)
    slot.start()
    assert slot.recovered(13.5) == 3.5 == slot.last_pause and slot.down_since is None
    slot.died(20.0)
    assert slot.last_pause == 3.5 and slot.recovered(20.25) == 0.25


def test_workers_of_an_earlier_process_are_ended_before_others_are_kept():
    """Where nothing was started between two deaths, as while the system refuses."""
    slot = ready_slot(0)
    left, more = FakeWorkers(), FakeWorkers()
    slot.child.leaves = left
    slot.died(1.0, killed=True)
    slot.child = FakeChild("x", [])  # one that could not be told of the workers
    slot.child.leaves = more
    slot.died(2.0, killed=True)
    assert left.is_closed and not more.is_closed and slot.start().kept is more


def test_names_in_labels():
    assert restart_slot.label("engine core 2") == "engine-core-2"
