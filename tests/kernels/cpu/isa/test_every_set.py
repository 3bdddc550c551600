"""Every instruction set that this host has: its kernels pass the same tests, give the same bits, and use no
instruction of another set. A process computes with one set, so that each has processes of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.instruction_sets import AVX2, NEON, SETS, X86_64, InstructionSet, host_sets

pytestmark = [pytest.mark.cpu_kernels, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[4]
OPERATIONS = "isa/test_operations.py", "isa/test_halves.py"
KERNELS = *OPERATIONS, "matmul", "elementwise", "attention", "runtime"
DIFFERING = *OPERATIONS, "matmul/compact"
INVARIANCE = "tests/worker/cpu/test_kernel_selection.py::test_logits_are_bitwise_the_same_in_any_company"
BEST = host_sets()[:1]
MODELS = [f"{INVARIANCE}[{name}]" for name in ("llama", "qwen2-int8", "odd", "odd-f32")]


def run(*command: str) -> str:
    """Python's output. Fails with it where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def of_host(one: InstructionSet) -> InstructionSet:
    if one not in host_sets():
        pytest.skip(f"this host lacks {one.title}")
    return one


@pytest.mark.parametrize("one", [one for one in SETS if one not in BEST], ids=lambda one: one.name)
def test_the_same_tests_pass(one: InstructionSet):
    """The best set's run in the process of all tests. In an architecture's lowest set all of them do; for the
    sets between, which give the same bits (see below), the operations that differ and a model are enough."""
    is_lowest = of_host(one) in (AVX2, NEON)
    kernels = KERNELS if is_lowest else DIFFERING
    models = MODELS if is_lowest else MODELS[1:2]
    paths = [*(f"tests/kernels/cpu/{name}" for name in kernels), *models]
    printed = run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--cpu-kernels={one.name}", *paths)
    assert re.search(r"\d+ passed", printed)


def test_bits_are_the_same():
    """In all sets; but AVX512-BF16 has an approximate reciprocal for silu() in bfloat16."""
    digests = {
        one.name: run("-m", "tests.kernels.cpu.isa.digests", one.name).splitlines() for one in host_sets()
    }
    rough = digests.pop("avx512_bf16", None)
    first, *others = digests.values()
    assert len(first) == 104
    for other in others:
        assert other == first
    if rough is not None:
        differing = [line for line, other in zip(rough, first, strict=True) if line != other]
        assert all(line.startswith("silu bfloat16") for line in differing)


ASSEMBLY = """
import sys
import llvmlite.binding as llvm
from kernels.cpu.instruction_sets import select
select(sys.argv[1])
from kernels.cpu.compiler import cache, llvm as compiler
from kernels.cpu.compiler.lowering import lower
cache.is_cached = lambda: False
assemble = cache.assemble

def show(code):
    module = llvm.parse_assembly(code)
    machine = compiler.target_machine()
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    print(machine.emit_assembly(module))
    return assemble(code)

cache.assemble = show
import kernels.cpu.elementwise.activations
import kernels.cpu.matmul.gemm_int8
"""


@pytest.mark.parametrize(
    "one", [one for one in SETS[1:] if one.architecture == X86_64], ids=lambda one: one.name
)
def test_no_instruction_of_another_set(one: InstructionSet):
    """Registers of 512 bits and masks are those of AVX-512."""
    assembly = run("-c", ASSEMBLY, of_host(one).name)
    assert "vfmadd" in assembly
    assert bool(re.search("%zmm|%k[1-7]", assembly)) == one.name.startswith("avx512")
    assert "bf16" not in assembly
