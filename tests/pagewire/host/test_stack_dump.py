"""Stacks of a process that hangs, from outside."""

import signal
import subprocess
import sys

import pytest

from pagewire.host.stack_dump import stacks_of

HANGS = """
import ctypes, signal, sys, threading
from pagewire.host import stack_dump
if "without" not in sys.argv:
    stack_dump.install()

waits = threading.Event()

def wait_for_something():
    waits.set()
    while True: signal.pause()

def keep_the_gil():
    print("hangs", flush=True)
    while True: ctypes.PyDLL(None).pause()  # a signal ends one pause

secret = "prompt"
threading.Thread(target=wait_for_something, daemon=True).start()
waits.wait()
keep_the_gil()
"""


@pytest.fixture
def hanging(request):
    """A process with two threads, one of which keeps the GIL for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, *getattr(request, "param", ())], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_that_keeps_the_gil_shows_all_of_its_threads(hanging):
    stacks = ""
    while not ("in keep_the_gil" in stacks and "in wait_for_something" in stacks):
        stacks = stacks_of(hanging.pid)  # on a busy machine it is not there, or not whole, within its time
    assert "prompt" not in stacks and hanging.poll() is None


def test_a_stopped_process_writes_nothing(hanging):
    hanging.send_signal(signal.SIGSTOP)
    with open(f"/proc/{hanging.pid}/stat") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "T":
            stat.seek(0)
    assert stacks_of(hanging.pid) == ""


@pytest.mark.parametrize("hanging", [["without"]], indirect=True)
def test_a_process_that_is_not_prepared_is_left_alone(hanging):
    assert stacks_of(hanging.pid) == "" and hanging.poll() is None


def test_no_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert stacks_of(process.pid) == ""
