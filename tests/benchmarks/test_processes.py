"""What the kernel reports about processes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.service import processes
from benchmarks.service.processes import by_role, context_switches, processor_seconds


def test_a_process_that_has_just_ended_has_no_role(monkeypatch: pytest.MonkeyPatch):
    """Those that compile kernels come and go."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    monkeypatch.setattr(processes, "below", lambda supervisor: {supervisor: [], ended.pid: []})
    assert by_role(os.getpid()) == {}


def test_context_switches_are_those_of_all_threads(tmp_path: Path):
    for thread, woken, preempted in ((8, 20, 3), (9, 4, 0)):
        folder = tmp_path / "8" / "task" / str(thread)
        folder.mkdir(parents=True)
        switches = f"voluntary_ctxt_switches:\t{woken}\nnonvoluntary_ctxt_switches:\t{preempted}\n"
        (folder / "status").write_text(f"Name:\tfrontend\n{switches}")
    assert context_switches(8, tmp_path) == (24, 3)


def test_processor_time_includes_threads_that_have_ended():
    used = []

    def work() -> None:
        while not (spent := time.thread_time()):
            pass
        used.append(spent)

    before = processor_seconds(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert processor_seconds(os.getpid()) - before >= used[0] > 0
