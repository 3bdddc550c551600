"""The garbage collector and the C library's heap after start-up."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.host.gc_tuning import freeze_heap, freeze_imports

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


@pytest.mark.parametrize(
    ("tune", "expected"), [(freeze_heap, ["collect", "freeze"]), (freeze_imports, ["freeze"])]
)
def test_only_the_main_thread_freezes_its_heap(
    tune: Callable[[], None], expected: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A worker that runs in a thread of another program must not collect that program's garbage."""
    calls: list[str] = []
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    thread = threading.Thread(target=tune)
    thread.start()
    thread.join()
    assert calls == []
    tune()
    assert calls == expected


IMPORTS = """
import gc
from worker.cpu.threads import prepare_threads
from worker.imports import quick_imports
from pagewire.host.gc_tuning import freeze_imports

prepare_threads()
with quick_imports():
    import worker.platforms.cpu
garbage = gc.collect()
freeze_imports()
print(garbage, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_imports_leave_no_garbage():
    """So a worker does not look for it; what it collects later is a hundredth of what is there."""
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    garbage, frozen, left = map(int, run.stdout.split())
    assert garbage < 1000 and 100 * left < frozen
