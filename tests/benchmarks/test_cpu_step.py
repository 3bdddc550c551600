"""Benchmarks of steps on a CPU, on the demo model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(name: str, *options: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.steps.{name}", "demo", "--prompt=20", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cpu_kernels
def test_every_operation_has_a_line():
    steps = re.split(r"^(?=\S)", output_of("cpu_step", "--batch=2", "--threads=1"), flags=re.MULTILINE)[1:]
    assert [step.split(":")[0] for step in steps] == ["2 prompts of 20 tokens", "decode of 2, context 21"]
    for step in steps:
        names = [line.split()[0] for line in step.splitlines()[1:]]
        assert {"embedding", "norms", "product", "rotary", "store", "attention"} <= set(names)
        assert "product 1024 x 192" in step
    assert ["nothing asked for" in step for step in steps] == [True, False]  # 40 rows; 2


@pytest.mark.cpu_kernels
def test_rows_with_a_common_prefix():
    first = output_of("cpu_step", "--batch=2", "--threads=1", "--shared=16").splitlines()[0]
    assert first.startswith("decode of 2, context 21, 16 of it in common: ")
