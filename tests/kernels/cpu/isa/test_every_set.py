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
KERNELS = "isa/test_operations.py", "matmul", "elementwise", "attention", "runtime"
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
    kernels = KERNELS if is_lowest else KERNELS[:1]
    models = MODELS if is_lowest else MODELS[1:2]
    paths = [*(f"tests/kernels/cpu/{name}" for name in kernels), *models]
    printed = run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--cpu-kernels={one.name}", *paths)
    assert re.search(r"\d+ passed", printed)


DIGESTS = """
import hashlib, sys
import numpy as np
import torch
from kernels.cpu.instruction_sets import select
select(sys.argv[1])
from kernels.cpu.attention.latent.attention import latent_attention, latent_kernels
from kernels.cpu.attention.block_attention import block_attention, block_kernels, plan_blocks
from kernels.cpu.elementwise.row_kernels import row_kernels
from kernels.cpu.matmul.groups.weight import round_in_groups
from kernels.cpu.matmul.int8 import quantize_weight
from kernels.cpu.matmul.packed12 import compact_weight
from kernels.cpu.matmul.packed import pack_weight

def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=generator).to(dtype)

def tell(name, *tensors):
    contents = b"".join(tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors)
    print(name, hashlib.sha256(contents).hexdigest())

generator = torch.Generator().manual_seed(1)
for n, k in ((100, 66), (576, 1536)):
    weight, bias = random(n, k), random(n)
    for rows in (1, 2, 5, 7, 33):
        x = random(rows, k)
        tell("product", pack_weight(weight.clone(), bias).multiply(x, True))
        tell("compact", compact_weight(weight.clone(), bias).multiply(x))
        tell("int8", quantize_weight(weight, bias).multiply(x))
        tell("int4", round_in_groups(weight, bias, 64).multiply(x, True))
        tell("float32", pack_weight(weight.float(), bias.float()).multiply(x.float()))
for dtype in (torch.bfloat16, torch.float32):
    rows, name = row_kernels(dtype=dtype), str(dtype)[6:]
    x, residual, gate_up, weight = (random(9, width, dtype=dtype) for width in (584, 584, 1168, 584))
    heads = random(9, 4, 72, dtype=dtype)
    tell("norm", *rows.add_rms_norm(x, residual, weight[0], 1e-5))
    tell("layer norm", *rows.layer_norm(x, residual, weight[0], weight[1], 1e-5))
    tell("rotary", rows.rotate(heads, random(9, 72).float(), random(9, 72).float()))
    tell("silu " + name, rows.gated_silu(gate_up))
for dtype, group in [(torch.bfloat16, 1), (torch.bfloat16, 7), *((torch.float32, n) for n in (1, 3, 4, 7))]:
    keys, values = random(70, 2, 16, 72, dtype=dtype), random(70, 2, 16, 72, dtype=dtype)
    starts, counts = np.array([600, 17, 0, 100]), np.array([1, 1, 37, 5])
    tables = np.arange(256).reshape(4, 64) % 70
    plan = plan_blocks(block_kernels(dtype, 16, 72, group), starts, counts, tables, None, 72, 2)
    query = random(44, 2 * group, 72, dtype=dtype)
    tell("attention", block_attention(query, keys, values, plan, 0.125))
    plan = plan_blocks(latent_kernels(dtype, 16, 80, group), starts, counts, tables, None, 80, 1)
    latents = random(70, 1, 16, 80, dtype=dtype)
    tell("latents", latent_attention(random(44, group, 80, dtype=dtype), latents, plan, 0.125, 72))
for group in (3, 4):
    keys, values = random(70, 2, 16, 64), random(70, 2, 16, 64)
    plan = plan_blocks(block_kernels(torch.bfloat16, 16, 64, group), starts, counts, tables, None, 64, 2)
    tell("attention", block_attention(random(44, 2 * group, 64), keys, values, plan, 0.125))
"""


def test_bits_are_the_same():
    """In all sets; but AVX512-BF16 has an approximate reciprocal for silu() in bfloat16."""
    digests = {one.name: run("-c", DIGESTS, one.name).splitlines() for one in host_sets()}
    best, *others = digests.values()
    for other in others:
        assert len(best) == len(other) == 72
        for line, expected in zip(other, others[-1], strict=True):
            assert line == expected
        for line, expected in zip(other, best, strict=True):
            assert line == expected or line.startswith("silu bfloat16")


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
import kernels.cpu.elementwise.activation
import kernels.cpu.matmul.quantize
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
