"""Freed memory stays with the process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = """
import resource, sys
import numpy as np
from worker.allocator import keep_freed_memory

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


def test_pages_are_used_again():
    """Twenty times 20 MB: new pages each time, then the same ones. In a process of its own."""
    run = subprocess.run([sys.executable, "-c", FAULTS], cwd=ROOT, capture_output=True, text=True, check=True)
    first, kept, later = map(int, run.stdout.split())
    assert kept == 0 or later * 10 < first, run.stdout
