"""Real children: they find our package wherever the user is, and die with the process that started them."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


def test_a_child_imports_our_package_from_any_folder(tmp_path: Path):
    """A folder of the user's that is called as one of our rooms must not be taken for it."""
    for name in ("pagewire", "frontend"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    child, status = process.spawn(["version"], cwd=tmp_path, stdout=subprocess.PIPE)
    output, _ = child.communicate(timeout=PATIENCE_S)
    os.close(status)
    assert child.returncode == 0 and output.strip()


def test_what_is_wrong_reaches_the_parent_alone():
    child, status = process.spawn(["serve", "/no/such/model"], stderr=subprocess.PIPE)
    _, error = child.communicate(timeout=PATIENCE_S)
    with os.fdopen(status) as events:
        event = json.loads(events.read())
    assert child.returncode == 1 and error == b""
    assert event["event"] == "failed" and "/no/such/model" in event["why"]


PARENT = """
import os, signal, subprocess, sys
from pagewire.host import spawn as process
code = '''
import signal
from pagewire.host import spawn as process
process.die_with_parent()
print(1, flush=True)
signal.pause()
'''
os.environ[process._PARENT_PID] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def test_children_die_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([descriptor], [], [], PATIENCE_S)[0]
    os.close(descriptor)


def test_status_without_a_parent_says_nothing(monkeypatch):
    monkeypatch.delenv("PAGEWIRE_STATUS_FD", raising=False)
    status = process.Status()
    assert not status.attached
    status.loading("weights", 0.5)
    status.ready(port=1)
    status.failed(StartupError("what"))


def test_status_lines(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setenv("PAGEWIRE_STATUS_FD", str(writing))
    status = process.Status()
    assert status.attached and "PAGEWIRE_STATUS_FD" not in os.environ
    status.loading("weights", 1 / 3)
    status.ready(port=1, model="m")
    status.failed(StartupError("what", "why", "todo"))
    os.close(writing)
    with os.fdopen(reading) as events:
        assert [json.loads(line) for line in events] == [
            {"event": "loading", "what": "weights", "fraction": 0.3333},
            {"event": "ready", "port": 1, "model": "m"},
            {"event": "failed", "what": "what", "why": "why", "todo": "todo", "may_pass": False},
        ]


def test_beats_do_not_wait_for_a_parent_that_does_not_read(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setenv("PAGEWIRE_STATUS_FD", str(writing))
    status = process.Status()
    for _ in range(70_000):  # more than a pipe holds
        status.beat()
    os.close(writing)
    with os.fdopen(reading) as events:
        assert {json.loads(line)["event"] for line in events} == {"beat"}


def test_a_pulse_beats_twice_a_second_at_most():
    now, beats = [5.0], []
    pulse = process.Heartbeat(lambda: beats.append(now[0]), lambda: now[0])
    for eighth in range(40, 53):
        now[0] = eighth / 8
        pulse()
    assert beats == [5.0, 5.5, 6.0, 6.5]
    now[0] = 60.0  # after a pause: one, and not all that were missed
    pulse()
    pulse()
    assert beats[4:] == [60.0]
