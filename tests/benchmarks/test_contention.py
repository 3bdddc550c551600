"""Which processes used the cores, told from what the kernel shows."""

import os
from pathlib import Path

import pytest

from benchmarks.versus.contention import Look, look, shares

TICK = 1 / os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, ticks: int, of_children: int = 0) -> None:
    """A name may hold spaces and parentheses."""
    (proc / str(pid)).mkdir()
    fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", str(of_children), "0", "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")


def test_own_time_is_that_of_a_process_and_all_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """10: measured, 11: its child; 20: another process, such as an idle peer; this process counts as own."""
    monkeypatch.setattr("time.process_time", lambda: 2.0)
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 50 6 7 8 9 10\ncpu0 0 0 0 0\n")
    for pid, parent, ticks, of_children in ((1, 0, 1000, 0), (10, 1, 5, 2), (11, 10, 40, 0), (20, 1, 300, 0)):
        process(tmp_path, pid, parent, ticks, of_children)
    seen = look(10, tmp_path)
    assert seen.busy == pytest.approx((100 + 20 + 30 + 6 + 7) * TICK)
    assert seen.stolen == pytest.approx(8 * TICK)
    assert seen.own == pytest.approx(47 * TICK + 2.0)


def test_shares_are_of_all_cores() -> None:
    """Two cores for ten seconds: 16 s were ours, 1 s was others', 0.4 s the host's."""
    used = shares(Look(100, 5, 50, 1000), Look(117, 5.4, 66, 1010), 2)
    assert (used.own, used.others, used.steal) == pytest.approx((80, 5, 2))
    assert used.disturbance == pytest.approx(7)


def test_own_time_may_be_told_earlier_than_all_time() -> None:
    """The kernel counts them in two ways, which differ by some ticks."""
    assert shares(Look(0, 0, 0, 0), Look(9.98, 0, 10, 10), 1).others == 0


def test_this_machine_can_be_looked_at() -> None:
    before = look(os.getpid())
    assert shares(before, look(os.getpid()), os.cpu_count() or 1).others >= 0
