"""What runs in an actor, in this process."""

import os
import sys

import pytest

from pagewire.host import spawn as process
from pagewire.launchers.ray_actor import RankHost

ARGUMENTS = ["--tensor-parallel-size=2", "--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1"]


def test_what_the_command_reports_is_returned():
    """Of a key that a rank refuses once it has read it: a file of no name, and of this user alone."""
    what, why, todo = RankHost().run(ARGUMENTS, "secret: nonsense")
    assert what == "cannot use --curve-key" and "secret is not a key of 40 characters" in why
    assert "/proc/" in why and todo


def test_how_the_command_ends_is_returned(monkeypatch: pytest.MonkeyPatch):
    kills_itself = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(process, "command", lambda arguments: kills_itself)
    before = os.listdir("/proc/self/fd")
    (why,) = RankHost().run(ARGUMENTS, "k")
    assert "SIGKILL" in why and os.listdir("/proc/self/fd") == before
