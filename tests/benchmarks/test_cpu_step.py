"""Benchmarks of steps on a CPU, on the demo model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint

ROOT = Path(__file__).parents[2]


def output_of(name: str, *options: str, prompt: str = "prompt", model: str = "demo") -> str:
    command = [sys.executable, "-m", f"benchmarks.steps.{name}", model, f"--{prompt}=20", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cpu_kernels
def test_every_operation_has_a_line():
    steps = re.split(r"^(?=\S)", output_of("cpu_step", "--batch=2", "--threads=1"), flags=re.MULTILINE)[1:]
    assert [step.split(":")[0] for step in steps] == ["2 prompts of 20 tokens", "decode of 2, context 21"]
    for step in steps:
        names = [line.split()[0] for line in step.splitlines()[1:]]
        kinds = {name.split(".")[0] for name in names}
        assert {"matmul", "elementwise", "product", "attention", "sampling"} == kinds
        assert "product 1024 x 192" in step


@pytest.mark.cpu_kernels
def test_one_row_is_beside_a_read_of_its_weights():
    last = output_of("cpu_step", "--batch=1", "--threads=1").splitlines()[-1]
    assert re.match(r"  a read of as much +[\d.]+ ms of processors, \d+% of [\d.]+ ms$", last)


@pytest.mark.cpu_kernels
def test_rows_with_a_common_prefix():
    first = output_of("cpu_step", "--batch=2", "--threads=1", "--shared=16").splitlines()[0]
    assert first.startswith("decode of 2, context 21, 16 of it in common: ")


@pytest.mark.cpu_kernels
def test_rows_of_an_encoder_decode_nothing(tmp_path: Path):
    folder = str(make_checkpoint("bert", tmp_path, hidden_size=64))
    lines = output_of("cpu_step", "--batch=2", "--threads=1", "--dtype=float32", model=folder).splitlines()
    assert lines[0].startswith("2 prompts of 20 tokens: ")
    assert any(line.split()[0] == "attention.float32_kv.attention_float32" for line in lines[1:])
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.cpu_kernels
def test_sizes_and_kinds_of_rows():
    options = "--rows=1,2", "--prompts=8", "--rounds=2", "--threads=1"
    lines = [line.split() for line in output_of("step_sizes", *options, prompt="context").splitlines()]
    kinds = "greedy", "sampled", "logprobs", "grammar", "penalties"
    sizes = ("1", "0"), ("2", "0"), ("0", "8"), ("1", "8")
    assert [(line[0], line[1], line[3]) for line in lines] == [
        (kind, *size) for kind in kinds for size in sizes
    ]
