"""What is left of this host's memory."""

import math

import pytest

from pagewire.host import memory
from pagewire.host.memory import available_memory


def test_a_control_group_may_allow_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_read", lambda path: "MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(memory, "memory_left", lambda: math.inf)
    assert available_memory() == 2 << 20
    monkeypatch.setattr(memory, "memory_left", lambda: 1000)
    assert available_memory() == 1000
