"""Statistics of processes, from /proc."""

import os
import subprocess
import sys
import time

import pytest

from pagewire.host.proc_stat import Vitals, read_vitals

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_this_process_runs_and_computes():
    before = read_vitals(os.getpid())
    assert before is not None and before.state == "R"
    while time.process_time() < before.cpu_s + 0.1:
        pass
    after = read_vitals(os.getpid())
    assert after is not None and after.cpu_s > before.cpu_s and after.starved_s >= before.starved_s


def test_a_process_that_has_ended_has_none():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert read_vitals(child.pid) is None


def test_computing_is_more_than_polling():
    before = Vitals("S", cpu_s=1.0, starved_s=0.0)
    assert not Vitals("S", cpu_s=1.04, starved_s=0.0).computes_since(before, 1.0)
    assert Vitals("R", cpu_s=1.06, starved_s=0.0).computes_since(before, 1.0)
