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
UNPACKING = "avx512_vbmi", "avx512_vnni", "avx2_vnni", "neon_dot"
"""Sets whose own instructions multiply integers and look values up; all else is that of the set below."""
INVARIANCE = "tests/worker/cpu/test_kernel_selection.py::test_logits_are_bitwise_the_same_in_any_company"
BEST = host_sets()[:1]
MODELS = [f"{INVARIANCE}[{name}]" for name in ("llama", "qwen2-int8", "odd-f32")]


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
    """The best set's run in the process of all tests. In an architecture's lowest set some cases of each do,
    and models; for the sets between, which give the same bits (see below), the operations that differ are
    enough."""
    is_lowest = of_host(one) in (AVX2, NEON)
    paths = [f"tests/kernels/cpu/{name}" for name in (KERNELS if is_lowest else DIFFERING)]
    words = ["-q", "-x", "-p", "no:cacheprovider", "--part=quick", f"--cpu-kernels={one.name}"]
    printed = run("-m", "pytest", *words, *paths, *(MODELS if is_lowest else []))
    assert re.search(r"\d+ passed", printed)


def test_bits_are_the_same():
    """In all sets; but AVX512-BF16 has an approximate reciprocal for silu() in bfloat16."""
    digests = {one.name: digests_of(one) for one in host_sets()}
    rough = digests.pop("avx512_bf16", None)
    first = next(lines for name, lines in digests.items() if name not in UNPACKING)
    assert len(first) == 99
    for name, other in digests.items():
        assert other == first[: 77 if name in UNPACKING else 99]
    if rough is not None:
        differing = [line for line, other in zip(rough, first, strict=True) if line != other]
        assert all(line.startswith("silu bfloat16") for line in differing)


def digests_of(one: InstructionSet) -> list[str]:
    words = ["--unpacking"] if one.name in UNPACKING else []
    return run("-m", "tests.kernels.cpu.isa.digests", one.name, *words).splitlines()


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
