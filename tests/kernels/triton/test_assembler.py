"""The assembler that Triton uses, for each capability; in a process of its own, since the choice is
global."""

import json
import os
import subprocess
import sys
from pathlib import Path

import triton

ROOT = Path(__file__).parents[3]
CODE = """
import json
from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas
from kernels.triton.assembler import choose_assembler, version_of

new = version_of(knobs.nvidia.ptxas_blackwell.path)

def choose(capability, cuda):
    said = choose_assembler(capability, cuda)
    used = version_of(get_ptxas(10 * capability[0] + capability[1]).path)
    return [said == new, used == new]

devices = [((9, 0), "13.0"), ((8, 0), "13.0"), ((9, 0), None), ((9, 0), "12.8"), ((10, 0), "13.0")]
print(json.dumps([choose(*device) for device in devices]))
"""
OLDER = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"


def newer(**environment: str) -> list[bool]:
    """Returns for each device whether the newer assembler is chosen; what is said is what Triton then
    uses."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    command = [sys.executable, "-c", CODE]
    run = subprocess.run(command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    chosen = json.loads(run.stdout)
    assert all(said == used for said, used in chosen)
    return [said for said, _ in chosen]


def test_hopper_is_assembled_by_the_newer_one():
    """Unless torch's CUDA, and so perhaps the driver, is too old for its code."""
    assert newer() == [True, False, True, False, True]


def test_the_environment_is_obeyed():
    assert newer(TRITON_PTXAS_PATH=str(OLDER)) == [False, False, False, False, True]
