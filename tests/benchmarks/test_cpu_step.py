"""benchmarks/cpu_step.py on the demo model: every operation of a step has a name and a line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.avx512_bf16
def test_every_operation_has_a_line():
    command = [sys.executable, "benchmarks/cpu_step.py", "demo", "--batch=2", "--prompt=20", "--threads=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps = re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)[1:]
    assert [step.split(":")[0] for step in steps] == ["2 prompts of 20 tokens", "decode of 2, context 21"]
    for step in steps:
        names = [line.split()[0] for line in step.splitlines()[1:]]
        assert {"embedding", "norms", "product", "rotary", "store", "attention"} <= set(names)
