"""Figures of compiled kernels beside those of benchmarks/gpu/golden.json: a few of them, on three devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import golden as gpu_golden

pytest.importorskip("ptx_emulator")
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(600)  # without what Triton has cached: some seconds for each of nine kernels
def test_figures_are_as_they_were(tmp_path: Path):
    """Registers, spills, shared memory, and programs per processor."""
    if gpu_golden.read()[0] != gpu_golden.versions():
        pytest.skip("golden figures are of another version of Triton")
    figures = tmp_path / "figures.json"
    own = ("TRITON_INTERPRET", "TRITON_PTXAS_PATH")  # Triton puts there what another test has chosen
    environment = {name: value for name, value in os.environ.items() if name not in own}
    words = ["--golden=quick", "--capability=80,90,100", "--jobs=2", f"--json={figures}"]
    command = [sys.executable, "-m", "benchmarks.gpu.compile", *words]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = json.loads(figures.read_text())
    assert {row["launch"] for row in rows} == gpu_golden.QUICK
    assert {row["capability"] for row in rows} == {80, 90, 100}
