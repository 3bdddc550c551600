"""Freed memory in the middle of the heap goes back."""

import subprocess
import sys
from pathlib import Path

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
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    worked, kib = map(int, run.stdout.split())
    assert not worked or kib > 40_000
