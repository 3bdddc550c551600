"""Triton's kernels on the emulator, each in a process that compiles them: a few of the tests that the
interpreter runs, and bugs that are planted into attention's PTX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ptx_emulator")
ROOT = Path(__file__).parents[3]
TESTS = (
    "elementwise/test_rms_norm.py",
    "attention/test_merge_chunks.py",
    "attention/test_paged_attention.py::test_decode_and_prefill_in_one_step[cpu-torch.bfloat16-20]",
)
"""All of tests/kernels/triton takes minutes."""


def python(*words: str) -> str:
    """Runs `python -m`, and returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", *words]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.timeout(600)  # without what Triton has cached: some seconds for each kernel
def test_kernels_compute_what_their_references_do():
    paths = [f"tests/kernels/triton/{name}" for name in TESTS]
    told = python("pytest", "-q", "--emulate-gpu=90", "-p", "no:cacheprovider", "-k", "bfloat16", *paths)
    assert " passed" in told and "skipped" not in told


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("capability", "bugs"), [(80, 7), (90, 10)])
def test_planted_bugs_are_found(capability: int, bugs: int):
    """With other poison, and with the programs in the other order, attention has the same bits; a wait, a
    barrier, a fence or a mask that is missing does not pass."""
    lines = python("tests.kernels.triton.planted", str(capability)).splitlines()
    outcomes = [json.loads(line) for line in lines]
    assert [each["same"] for each in outcomes if each["bug"] is None] == [True, True]
    planted = [each for each in outcomes if each["bug"] is not None]
    assert [each["bug"] for each in planted if not each["found"]] == []
    assert len(planted) == bugs
