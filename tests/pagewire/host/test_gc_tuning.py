"""The garbage collector and the C library's heap after start-up."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pagewire.host.gc_tuning import freeze_heap

FREED = """
from pagewire.host.gc_tuning import give_back_freed_memory

def resident() -> int:
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS:"))
    return int(line.split()[1])

blocks = [bytearray(50_000) for _ in range(1000)]
del blocks[:-1]
before = resident()
print(int(give_back_freed_memory()), before - resident())
"""


def test_freed_memory_goes_back():
    """50 MB in blocks that the C library takes from its heap; the last one keeps the heap from shrinking."""
    run = subprocess.run(
        [sys.executable, "-c", FREED],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    worked, kib = map(int, run.stdout.split())
    assert not worked or kib > 40_000


def test_only_the_main_thread_freezes_its_heap(monkeypatch: pytest.MonkeyPatch):
    """A worker that runs in a thread of another program must not collect that program's garbage."""
    calls: list[str] = []
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    thread = threading.Thread(target=freeze_heap)
    thread.start()
    thread.join()
    assert calls == []
    freeze_heap()
    assert calls == ["collect", "freeze"]
