"""What is left of this host's memory."""

import math

import pytest

from pagewire.host import resources
from pagewire.host.resources import available_memory


def test_a_control_group_may_allow_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resources, "_read", lambda path: "MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    monkeypatch.setattr(resources, "memory_left", lambda: math.inf)
    assert available_memory() == 2 << 20
    monkeypatch.setattr(resources, "memory_left", lambda: 1000)
    assert available_memory() == 1000
