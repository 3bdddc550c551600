"""Hang detection by heartbeats, awake time and CPU time, with fake time."""

import os
import signal
import subprocess
import sys

import pytest

from pagewire.host.liveness import STARTING_PATIENCE_S, AwakeTime, Liveness
from pagewire.host.proc_stat import Vitals, read_vitals

PATIENCE, LOOK = 3.0, 0.5
ASLEEP = Vitals("S", 1.0, 0.0)


def looks_until_it_hangs(liveness: Liveness, vitals: list[Vitals | None], *, starts: bool = False) -> int:
    """How many of these looks there were before it hung; all of them if it does not."""
    for number, each in enumerate(vitals):
        if liveness.hangs(LOOK, each, PATIENCE, starts=starts):
            return number
    return len(vitals)


def test_silence_counts_from_the_last_word():
    liveness = Liveness()
    assert not any(liveness.hangs(LOOK, ASLEEP, PATIENCE, starts=False) for _ in range(5))
    liveness.heard()
    assert looks_until_it_hangs(liveness, [ASLEEP] * 9) == 5, "six looks of half a second"
    assert liveness.silent_s == PATIENCE


def test_without_the_kernel_words_alone_count():
    assert looks_until_it_hangs(Liveness(), [None] * 9) == 5


def test_computing_is_no_sign_of_life_of_a_process_that_serves():
    """A loop that never ends computes, too."""
    busy = [Vitals("R", LOOK * number, 0.0) for number in range(9)]
    assert looks_until_it_hangs(Liveness(), busy) == 5


def test_a_process_that_gets_no_core_is_not_silent():
    """The other processes of the machine are to blame."""
    starved = [Vitals("R", 1.0, 0.98 * LOOK * number) for number in range(50)]
    assert looks_until_it_hangs(Liveness(), starved) == 50


@pytest.mark.parametrize(
    "vitals",
    [
        [Vitals("S", 0.1 * LOOK * number, 0.0) for number in range(90)],
        [Vitals("D", 1.0, 0.0)] * 90,
    ],
    ids=["computes", "reads a disk"],
)
def test_a_process_that_starts_may_take_long_if_it_does_something(vitals: list[Vitals]):
    assert looks_until_it_hangs(Liveness(), vitals, starts=True) == 90


@pytest.mark.parametrize("vitals", [ASLEEP, Vitals("T", 1.0, 0.0), None], ids=str)
def test_a_process_that_starts_and_does_nothing_hangs(vitals: Vitals | None):
    needed = int(STARTING_PATIENCE_S / LOOK)
    assert looks_until_it_hangs(Liveness(), [vitals] * 90, starts=True) == needed - 1


def test_a_thread_that_only_ticks_does_not_start_anything():
    ticks = [Vitals("S", 0.01 * (number // 2), 0.0) for number in range(90)]
    assert looks_until_it_hangs(Liveness(), ticks, starts=True) < 90


def test_time_in_which_we_were_stopped_does_not_count():
    awake = AwakeTime(100.0)
    assert awake.passed(100.25, LOOK) == 0.25
    assert awake.passed(100.75, LOOK) == 0.5
    assert awake.passed(1100.0, LOOK) == 0.5
    assert awake.passed(1100.5, LOOK) == 0.5


def test_a_machine_that_sleeps_kills_no_process():
    """All processes were stopped just before a heartbeat, which follows within a second of the resume."""
    liveness, awake = Liveness(), AwakeTime(0.0)
    now = 0.0
    for pause in (0.5, 0.5, 3600.0, 0.5, 0.5):
        now += pause
        assert not liveness.hangs(awake.passed(now, LOOK), ASLEEP, PATIENCE, starts=False)


def test_the_kernel_knows_a_child():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        first = read_vitals(child.pid)
        assert first is not None
        later = first
        while not later.computes_since(first, 1.0):
            later = read_vitals(child.pid) or first
        assert later.state == "R" and later.starved_s >= first.starved_s
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        stopped = read_vitals(child.pid)
        assert stopped is not None and stopped.state == "T"
    finally:
        child.kill()
        child.wait()
    assert read_vitals(child.pid) is None
