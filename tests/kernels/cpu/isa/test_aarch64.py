"""Kernels for aarch64: what they compute, on an emulated processor; and that nothing but the files of
instruction sets names instructions of one architecture."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("unicorn", reason="the emulator of aarch64 is not installed")

ROOT = Path(__file__).parents[4]
CPU = ROOT / "kernels" / "cpu"
OPERATIONS = "isa/test_operations.py"
KERNELS = "matmul/test_references.py", "elementwise/test_references.py"


@pytest.mark.parametrize(
    ("name", "paths", "chosen"),
    [("neon", (OPERATIONS, *KERNELS), "not any"), ("neon_dot", (OPERATIONS,), "own and (quads or nibbles)")],
    ids=["neon", "neon_dot"],
)
def test_kernels_give_what_python_gives(name: str, paths: tuple[str, ...], chosen: str):
    """Bit for bit: operations against their formulas, products and rows against the same functions in
    Python. chosen: of the tests, those of what the set has of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen]
    command += ["-p", "tests.kernels.cpu.emulation.plugin", "--emulate", name]
    command += [f"tests/kernels/cpu/{path}" for path in paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout


def test_architectures_are_named_in_files_of_instruction_sets():
    """Their instructions, and what else LLVM has for one architecture."""
    named = {
        path.relative_to(CPU)
        for path in CPU.rglob("*.py")
        if re.search(r"llvm\.(x86|aarch64)\.|\"=[vw],0\"", path.read_text())
    }
    assert named and {path.parts[:2] for path in named} == {("isa", "sets")}
