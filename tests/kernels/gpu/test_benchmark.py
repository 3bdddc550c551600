"""benchmarks/gpu_kernels.py has not been run on a GPU where this is: its works at least do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_kernels import error, line
from benchmarks.gpu_works import Setting, works

ROOT = Path(__file__).parents[3]


def test_works_give_what_torch_gives():
    """Small, in the interpreter; one of each kind."""
    seen = set()
    for make in works(Setting(torch.device("cpu"), torch.float16, 256)):
        work = make()
        kind = work.name.rstrip("0123456789 x,tokens")
        if kind not in seen and "0.5B" not in kind:
            seen.add(kind)
            if work.compare:
                assert (error(work) or 0.0) < 5e-3, work.name
            else:
                work.ours()
                if work.theirs is not None:
                    work.theirs()
    assert len(seen) > 8


def test_a_line_of_the_table():
    row = {"name": "a", "ours_us": 2.0, "torch_us": 3.0, "per_second": 2.5e12, "unit": "GB/s"}
    assert line(row | {"share": 0.6, "error": 1e-4}) == "| a | 2.0 | 3.0 | 1.50 | 2500 GB/s | 60% | 1.0e-04 |"


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ([sys.executable, "-m", "benchmarks.gpu_kernels"], "no CUDA device"),
        ([sys.executable, "-m", "pytest", "-m", "gpu", "tests/kernels/gpu"], "no CUDA device"),
        ([sys.executable, "-m", "benchmarks.gpu_compile"], "TRITON_INTERPRET=1 is set"),
    ],
)
def test_refusals(command: list[str], what: str):
    """One line, at once, where there is no device, or one that is hidden."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert what in run.stdout + run.stderr
