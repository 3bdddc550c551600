"""Freed memory stays with the process; pages that only start-up needed do not."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


SETTINGS = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""Variables that set the number of heaps of every process of this machine."""
HEAPS = """
import ctypes, sys, threading
from worker.cpu.malloc_tuning import use_one_heap

use_one_heap() if sys.argv[1] == "one" else None
gate = threading.Barrier(4)

def allocate() -> None:
    gate.wait()
    del [bytes(5_000) for _ in range(100)][:]

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(sys.argv[2].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library than glibc")
def test_all_threads_share_a_heap(tmp_path: Path):
    """As the C library itself says; without the setting they have their own."""
    counts = {}
    ours = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    for which in ("one", "several"):
        file = tmp_path / which
        subprocess.run([sys.executable, "-c", HEAPS, which, str(file)], cwd=ROOT, env=ours, check=True)
        counts[which] = file.read_text().count("<heap nr=")
    assert counts["one"] == 1 < counts["several"]


LIBRARIES = """
import sys
import numpy as np
from worker.cpu import malloc_tuning

def in_libraries() -> int:
    fields = dict(line.split()[:2] for line in list(open("/proc/self/smaps_rollup"))[1:])
    return int(fields["Rss:"]) - int(fields["Anonymous:"])  # the Pss depends on other processes

x = np.arange(10_000.0).reshape(100, 100)
product = x @ x
before = in_libraries()
getattr(malloc_tuning, sys.argv[1])()
after = in_libraries()
print(before, after, int((x @ x == product).all()))
"""


@pytest.mark.parametrize("release", ["release_startup_memory", "drop_library_pages"])
def test_library_code_is_dropped_and_still_runs(release: str):
    run = subprocess.run(
        [sys.executable, "-c", LIBRARIES, release], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after, same = map(int, run.stdout.split())
    assert after * 2 < before and same
