"""Prints digests of what the kernels of an instruction set compute: products, rows, attention.

    python -m tests.kernels.cpu.isa.digests avx2
    python -m tests.kernels.cpu.isa.digests neon_dot --emulate    # on an emulated processor: some minutes

A process computes with one set. Equal lines are equal bits.
"""

import argparse
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.cpu.compiler.llvm import link_with
from kernels.cpu.instruction_sets import SETS, compile_for, select

if TYPE_CHECKING:
    from kernels.cpu.matmul.groups.weight import GroupedWeight

_GENERATOR = np.random.default_rng(1)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The next values around 0, the same on every processor: torch's normal values depend on its vector
    instructions."""
    values = _GENERATOR.integers(-(1 << 20), 1 << 20, (3, *shape)).sum(0)
    return torch.from_numpy(values / 2.0**20).to(dtype)


def tell(name: str, *tensors: torch.Tensor) -> None:
    """Prints a line."""
    contents = b"".join(tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors)
    print(name, hashlib.sha256(contents).hexdigest(), flush=True)


def products() -> None:
    """With each form of weights."""
    from kernels.cpu.matmul.compact.weight import compact_weight
    from kernels.cpu.matmul.groups.weight import round_to_two_levels
    from kernels.cpu.matmul.int8 import quantize_weight
    from kernels.cpu.matmul.packed import pack_weight

    for n, k in ((100, 66), (576, 1536)):
        weight, bias = random(n, k), random(n)
        for rows in (1, 2, 5, 7, 33):
            x = random(rows, k)
            tell("product", pack_weight(weight.clone(), bias).multiply(x, True))
            tell("compact", compact_weight(weight.clone(), bias).multiply(x))
            tell("int8", quantize_weight(weight, bias).multiply(x))
            tell("int4", round_to_two_levels(weight, bias).multiply(x, True))
            if k % 32 == 0:
                tell("groups", in_groups(weight, bias).multiply(x, True))
                tell("e2m1", in_groups(weight, None, e2m1=True).multiply(x, True))
            tell("float32", pack_weight(weight.float(), bias.float()).multiply(x.float()))
            if k % 128 == 0:
                for form in (pack_weight, compact_weight, round_to_two_levels):
                    tell("leaves", form(weight.clone(), bias, leaves=4).multiply(x))


def in_groups(weight: torch.Tensor, bias: torch.Tensor | None, e2m1: bool = False) -> "GroupedWeight":
    """Any integers or floats of 4 bits with scales, made of a weight's bits, [N, K]."""
    from kernels.cpu.matmul.groups.weight import GroupedWords
    from kernels.cpu.matmul.records import E2M1_MIDDLE

    (rows, width), groups = weight.shape, weight.shape[1] // 32
    codes = (weight.view(torch.int16) >> 4 & 15).to(torch.uint8).view(rows, groups, 32)
    words = GroupedWords.empty((rows, width), 32, groups, e2m1=e2m1)
    scales = torch.full((rows, groups), 2.0**-6)
    words.put(torch.arange(rows), codes, scales, torch.full((rows, groups), E2M1_MIDDLE))
    return words.pack(bias)


def row_operations() -> None:
    """Norms, rotary embeddings, activations."""
    from kernels.cpu_ops import CpuOps

    for dtype in (torch.bfloat16, torch.float32):
        rows, name = CpuOps(dtype), str(dtype)[6:]
        x, residual, gate_up, weight = (random(9, width, dtype=dtype) for width in (584, 584, 1168, 584))
        heads = random(9, 4, 72, dtype=dtype)
        tell("norm", *rows.add_rms_norm(x, residual, weight[0], 1e-5))
        tell("layer norm", *rows.add_layer_norm(x, residual, weight[0], weight[1], 1e-5))
        tell("rotary", rows.rotate(heads, random(9, 72).float(), random(9, 72).float()))
        tell("silu " + name, rows.gated_activation(gate_up, "silu"))


ROWS = (
    np.array([600, 17, 0, 100]),
    np.array([1, 1, 37, 5]),
    np.arange(256).reshape(4, 64) % 70,
)
"""Their first positions, how many tokens they have, and their blocks."""


def attention_of_8_bits() -> None:
    """Over keys and values of 8 bits."""
    from kernels.cpu.attention.block_attention import block_attention, block_kernels
    from tests.kernels.block_plans import plan_blocks

    codes = random(2, 70, 2, 16, 72).to(torch.float8_e4m3fn)
    for dtype in (torch.bfloat16, torch.float32):
        plan = plan_blocks(block_kernels(dtype, 16, 72, 4, True), *ROWS, None, 72, 2)
        query = random(44, 8, 72, dtype=dtype)
        tell("attention of e4m3", block_attention(query, codes[0], codes[1], plan, 0.125))


def attention() -> None:
    """Over keys and values, and over latents."""
    from kernels.cpu.attention.block_attention import block_attention, block_kernels
    from kernels.cpu.attention.latent.attention import latent_attention, latent_kernels
    from tests.kernels.block_plans import plan_blocks

    starts, counts, tables = ROWS
    for dtype, group in [
        (torch.bfloat16, 1),
        (torch.bfloat16, 7),
        *((torch.float32, n) for n in (1, 3, 4, 7)),
    ]:
        keys, values = random(70, 2, 16, 72, dtype=dtype), random(70, 2, 16, 72, dtype=dtype)
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


def main() -> None:
    """Prints all of them."""
    parser = argparse.ArgumentParser(description="digests of what kernels compute")
    parser.add_argument("set", choices=[one.name for one in SETS])
    parser.add_argument("--emulate", action="store_true", help="on an emulated aarch64 processor")
    parser.add_argument("--unpacking", action="store_true", help="only what multiplies or unpacks integers")
    options = parser.parse_args()
    if options.emulate:
        from tests.kernels.cpu.emulation.linker import EmulatorLinker
        from tests.kernels.cpu.emulation.processor import Processor

        compile_for(next(one for one in SETS if one.name == options.set))
        link_with(EmulatorLinker(Processor()))
    else:
        select(options.set)
    products()
    attention_of_8_bits()
    if not options.unpacking:
        row_operations()
        attention()


if __name__ == "__main__":
    main()
