"""A child of the supervisor whose workers are started for it."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from pagewire.host import spawn as process
from pagewire.supervisor.child import STARTS_WORKERS, Child


def test_an_order_that_is_not_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended meanwhile; its successor gets another order."""

    def spawn(arguments: Sequence[str], **options: object) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        os.close(writing)
        return subprocess.Popen([sys.executable, "-S", "-c", ""], **options), reading  # type: ignore[call-overload]

    monkeypatch.setattr(process, "spawn", spawn)
    child = Child("engine core", ["engine", STARTS_WORKERS])
    child.process.wait(30)
    child.activate()
    child.close()
    assert child.process.stdin is not None and child.process.stdin.closed
