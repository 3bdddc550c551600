"""When a slot restarts its process, and when it gives up."""

import pytest

from pagewire.supervisor import restart_slot
from pagewire.supervisor.restart_slot import RestartSlot


class FakeChild:
    """A process that is never there."""

    def __init__(self, name: str, arguments: list[str], *, standby: bool = False) -> None:
        self.name, self.arguments, self.is_standby = name, arguments, standby
        self.facts: dict[str, int] | None = None
        self.is_lost = self.is_active = self.after_kill = self.stands_by = False
        self.is_closed = False
        self.kept: FakeWorkers | None = None
        self.leaves: FakeWorkers | None = None

    def activate(self, *, after_kill: bool = False, kept: "FakeWorkers | None" = None) -> None:
        """See Child."""
        self.is_active, self.after_kill, self.kept = True, after_kill, kept

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
    monkeypatch.setattr(restart_slot, "available_memory", lambda: restart_slot.STANDBY_MEMORY)


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
    assert pauses == [0.0, 0.5, 1.0, 2.0]


def test_a_start_that_the_system_refuses_is_no_death(monkeypatch: pytest.MonkeyPatch):
    """The pause doubles up to its bound, and starts over after a process has started."""
    slot = RestartSlot("x", [], 2, 3.0)
    assert [slot.postpone(10.0) for _ in range(5)] == [0.5, 1, 2, 3, 3]
    assert slot.start_at == 13.0
    slot.start()
    assert slot.postpone(20.0) == 0.5
    assert slot.died(21.0)


def test_a_standby_is_started_once_the_process_is_ready():
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    assert not slot.needs_standby(0.0)
    child = slot.start()
    assert not slot.needs_standby(0.0)
    child.facts = {}
    assert slot.needs_standby(0.0)
    assert slot.start_standby(0.0).is_standby
    assert not slot.needs_standby(0.0)


def test_a_standby_fills_the_role_after_a_death():
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    slot.start().facts = {}
    standby = slot.start_standby(0.0)
    slot.died(1.0)
    assert slot.start() is standby and standby.is_active and not slot.standbys
    assert not standby.after_kill


def test_a_standby_is_told_of_a_kill():
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    slot.start().facts = {}
    standby = slot.start_standby(0.0)
    slot.died(1.0, killed=True)
    assert slot.start() is standby and standby.after_kill


@pytest.mark.parametrize("has_standby", [False, True])
def test_the_next_process_gets_the_workers_that_are_left(has_standby: bool):
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    child, left = slot.start(), FakeWorkers()
    child.facts, child.leaves = {}, left
    if has_standby:
        slot.start_standby(0.0)
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


def test_a_lost_standby_is_replaced_after_a_pause_and_never_activated():
    slot = RestartSlot("x", [], 5, 10.0, num_standbys=1)
    slot.start().facts = {}
    lost = slot.start_standby(0.0)
    lost.is_lost = True
    slot.died(1.0)
    child = slot.start()
    assert child is not lost and not lost.is_active
    child.facts = {}
    slot.recovered(1.0)
    slot.drop_standby(lost, 1.0)
    assert not slot.needs_standby(1.0 + restart_slot.STANDBY_PAUSE_S / 2)
    assert slot.needs_standby(1.0 + restart_slot.STANDBY_PAUSE_S)


def test_more_standbys_wait_where_processes_die_often():
    """One more for each death within a minute, up to a bound; the next one when the last has imported all."""
    slot = RestartSlot("x", [], 99, 10.0, num_standbys=1)
    slot.start().facts = {}
    counts = []
    for now in (0.0, 1.0, 2.0, 3.0, 100.0):
        standbys = 0
        while slot.needs_standby(now):
            standby = slot.start_standby(now)
            assert not slot.needs_standby(now), "it has not imported everything"
            standby.stands_by = True
            standbys += 1
        counts.append((standbys, len(slot.standbys)))
        oldest = slot.standbys[0]
        slot.died(now)
        slot.start().facts = {}
        slot.recovered(now)
        assert slot.child is oldest
    assert counts == [(1, 1), (2, 2), (2, 3), (1, 3), (0, 2)]


def test_streams_go_on_before_the_next_standby_is_started():
    slot = RestartSlot("x", [], 99, 10.0, num_standbys=1)
    slot.start().facts = {}
    slot.died(0.0)
    slot.start().facts = {}
    assert not slot.needs_standby(9.0), "it is not known to have recovered"
    slot.recovered(9.0)
    assert not slot.needs_standby(9.0)
    assert slot.needs_standby(9.0 + restart_slot.STANDBY_DELAY_S)


def test_a_standby_too_many_is_dropped():
    slot = RestartSlot("x", [], 99, 10.0, num_standbys=1)
    slot.start().facts = {}
    slot.died(0.0)
    slot.start().facts = {}
    slot.recovered(0.0)
    first, second = slot.start_standby(0.0), slot.start_standby(0.0)
    assert slot.surplus_standby(59.0) is None
    assert slot.surplus_standby(61.0) is second
    slot.drop_standby(second, 61.0)
    assert slot.surplus_standby(61.0) is None and [*slot.standbys] == [first]


def ready_slot(num_standbys: int) -> RestartSlot:
    """A role whose first process is ready."""
    slot = RestartSlot("x", [], 99, 10.0, num_standbys=num_standbys)
    slot.start().facts = {}
    return slot


def start_standbys(slot: RestartSlot, now: float) -> int:
    """Starts those that are wanted now, one after another; returns how many."""
    count = 0
    while slot.needs_standby(now):
        slot.start_standby(now).stands_by = True
        count += 1
    return count


def test_several_standbys_wait_from_the_start_and_take_over_one_after_another():
    """The second is started when the first has imported everything. Two deaths within a moment find them."""
    slot = RestartSlot("x", [], 99, 10.0, num_standbys=2)
    child = slot.start()
    assert not slot.needs_standby(0.0), "the first process loads"
    child.facts = {}
    first = slot.start_standby(0.0)
    assert not slot.needs_standby(0.0), "the first standby imports"
    first.stands_by = True
    assert start_standbys(slot, 0.0) == 1
    second = slot.standbys[1]
    for now, expected in ((1.0, first), (1.1, second)):
        slot.died(now, explained=True, killed=True)
        assert slot.start() is expected
    slot.child.facts = {}
    slot.recovered(1.3)
    assert start_standbys(slot, 1.3 + restart_slot.STANDBY_DELAY_S) == 2 + 2
    slot.died(2.0)
    slot.start().facts = {}
    slot.recovered(2.0)
    assert start_standbys(slot, 3.0) == 1, "there are never more than two beyond those of the start"


def test_a_second_standby_needs_memory(monkeypatch: pytest.MonkeyPatch):
    """The first one does not; what is left is looked at again after a pause."""
    left = restart_slot.STANDBY_MEMORY - 1
    monkeypatch.setattr(restart_slot, "available_memory", lambda: left)
    slot = ready_slot(2)
    assert start_standbys(slot, 0.0) == 1
    left += 1
    assert start_standbys(slot, restart_slot.STANDBY_PAUSE_S - 0.1) == 0
    assert start_standbys(slot, restart_slot.STANDBY_PAUSE_S) == 1


def test_standbys_that_are_killed_are_replaced_at_once_unless_it_happens_again_and_again():
    """Both may be killed in one moment; a kernel that has no memory would kill their successors, too."""
    slot = ready_slot(2)
    start_standbys(slot, 0.0)
    for standby in list(slot.standbys):
        slot.drop_standby(standby, 100.0, killed=True)
    assert not slot.needs_standby(100.0)
    assert start_standbys(slot, 100.0 + restart_slot.STANDBY_DELAY_S) == 2
    slot.drop_standby(slot.standbys[0], 110.0, killed=True)
    assert start_standbys(slot, 110.0 + restart_slot.STANDBY_DELAY_S) == 0
    assert start_standbys(slot, 110.0 + restart_slot.STANDBY_PAUSE_S) == 1
    slot.drop_standby(slot.standbys[0], 200.0, killed=True)
    assert start_standbys(slot, 200.0 + restart_slot.STANDBY_DELAY_S) == 1


def test_a_death_while_all_standbys_are_gone_starts_a_process():
    slot = ready_slot(2)
    start_standbys(slot, 0.0)
    for standby in slot.standbys:
        standby.is_lost = True
    slot.died(1.0, explained=True, killed=True)
    assert slot.start() not in slot.standbys and slot.child.is_active


def test_a_slot_may_have_no_standby():
    slot = RestartSlot("x", [], 5, 10.0)
    slot.start().facts = {}
    assert not slot.needs_standby(100.0)


def test_a_process_that_has_died_is_closed_and_so_is_all_that_is_left_at_the_end():
    slot = ready_slot(1)
    first, standby = slot.child, slot.start_standby(0.0)
    slot.died(1.0)
    assert first.is_closed and slot.child is None
    second = slot.start()
    assert second is standby and second.name == "x" and not second.is_closed
    second.facts = {}
    slot.recovered(2.0)
    third = slot.start_standby(9.0)
    slot.close()
    assert second.is_closed and third.is_closed


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


def test_a_standby_is_there_while_one_lives_that_has_imported_everything():
    slot = ready_slot(2)
    assert not slot.has_standby
    first = slot.start_standby(0.0)
    assert not slot.has_standby, "it imports"
    first.stands_by = True
    second = slot.start_standby(0.0)
    assert slot.has_standby, "one of two is enough"
    first.is_lost = True
    assert not slot.has_standby
    second.stands_by = True
    assert slot.has_standby


def test_a_death_counts_for_a_minute():
    """For standbys, and for giving up: that of sixty seconds ago does no more."""
    for now, wanted in ((restart_slot.WINDOW_S - 0.1, 2), (restart_slot.WINDOW_S, 1)):
        slot = ready_slot(1)
        slot.died(0.0)
        slot.start().facts = {}
        slot.recovered(0.0)
        assert start_standbys(slot, now) == wanted
    assert pauses(2, 0.0, restart_slot.WINDOW_S - 0.1) == [0, None]
    assert pauses(2, 0.0, restart_slot.WINDOW_S) == [0, 0]


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


def test_a_start_is_told_of_a_kill_where_workers_are_kept():
    """A process that is no standby too: it adopts, or loads again."""
    slot = ready_slot(0)
    slot.child.leaves = FakeWorkers()
    slot.died(1.0, killed=True)
    assert slot.start().after_kill
    slot.died(2.0, killed=True)
    assert not slot.start().after_kill, "there is nothing to adopt"


def test_a_standby_that_the_system_refuses_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch):
    slot = ready_slot(1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(restart_slot, "Child", refuse)
    assert slot.start_standby(5.0) is None and not slot.standbys
    assert not slot.needs_standby(5.0 + restart_slot.STANDBY_PAUSE_S - 0.1)
    assert slot.needs_standby(5.0 + restart_slot.STANDBY_PAUSE_S)


def test_names_in_labels():
    assert restart_slot.label("engine core 2") == "engine-core-2"
