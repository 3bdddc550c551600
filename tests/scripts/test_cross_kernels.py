"""Kernels compile for processors that this host is not, and call nothing that is missing there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from kernels.cpu.instruction_sets import NEON_BF16
from scripts.cross_kernels import all_kernels, missing_functions
from scripts.object_file import ObjectFile

ROOT = Path(__file__).parents[2]
KERNELS = (
    "elementwise.norms,elementwise.activations,matmul.packed_rows,runtime.program,sampling.logits_processors"
)
"""Some that compile quickly: operations of sets, atomic words and system calls are there."""


def cross_kernels(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.cross_kernels", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_kernels_compile_for_aarch64():
    """In the set that no emulator of the tests has; the others are run (tests/kernels/cpu/isa)."""
    done = cross_kernels("--sets", "neon_bf16", "--kernels", KERNELS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"neon_bf16: \d+ kernels, .*, needs sched_yield, syscall\n", done.stdout)


def test_kernels_of_x86_64_do_not():
    """LLVM knows none of their instructions there, and says so; nothing is compiled by accident."""
    script = (
        "from kernels.cpu import instruction_sets as sets\n"
        "from dataclasses import replace\n"
        "from scripts.cross_kernels import check\n"
        "foreign = replace(sets.AVX2, architecture=sets.AARCH64, features=sets.NEON.features)\n"
        "check(foreign, ['elementwise.activations'])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "llvm.x86" in done.stderr


def test_weights_in_12_bits_are_compiled_where_they_are_fast():
    assert "matmul.compact.product" not in all_kernels(NEON_BF16)


def test_functions_that_are_nowhere():
    assert missing_functions({"memcpy", "log", "no_such_function"}) == {"no_such_function"}


def test_an_unknown_set_is_refused():
    done = cross_kernels("--sets", "neon,sve")
    assert done.returncode == 2 and "--sets: sve: there are avx512_bf16" in done.stderr


def test_only_object_files_are_read():
    with pytest.raises(ValueError, match="ELF of 64 bits"):
        ObjectFile(b"MZ" + bytes(100))
