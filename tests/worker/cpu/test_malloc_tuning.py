"""Freed memory stays with the process; pages that only start-up needed do not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FAULTS = """
import resource, sys
import numpy as np
from worker.cpu.malloc_tuning import keep_freed_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.empty(20 << 20, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
kept = keep_freed_memory()
faults()
print(first, int(kept), faults())
"""


def test_freed_pages_are_reused():
    """Twenty times 20 MB: new pages each time, then the same ones. In a process of its own."""
    run = subprocess.run([sys.executable, "-c", FAULTS], cwd=ROOT, capture_output=True, text=True, check=True)
    first, kept, later = map(int, run.stdout.split())
    assert kept == 0 or later * 10 < first, run.stdout


LIBRARIES = """
import numpy as np
from worker.cpu.malloc_tuning import release_startup_memory

def in_libraries() -> int:
    (line,) = (line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss_File:"))
    return int(line.split()[1])

x = np.arange(10_000.0).reshape(100, 100)
product = x @ x
before = in_libraries()
release_startup_memory()
after = in_libraries()
print(before, after, int((x @ x == product).all()))
"""


def test_library_code_is_dropped_and_still_runs():
    run = subprocess.run(
        [sys.executable, "-c", LIBRARIES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after, same = map(int, run.stdout.split())
    assert after * 2 < before and same
