"""Runs hand-written PTX on the emulator: a body of instructions, on tensors."""

import numpy as np
import torch

from ptx_emulator.machine import run_program
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.parser import parse
from ptx_emulator.program import EmulatedProgram
from ptx_emulator.threads import Threads

HEADER = """
.version 8.7
.target sm_{target}a
.extern .shared .align 16 .b8 global_smem[];
.visible .entry snippet({parameters})
.reqntid {threads}
{{
.reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;
{loads}
mov.u32 %r0, %tid.x;
"""


def run(
    body: str,
    *tensors: torch.Tensor,
    threads: int = 32,
    shared: int = 0,
    poison: int = 0xFF,
    target: int = 90,
) -> int:
    """Runs one program, and returns the number of its instructions. %rd0, %rd1, ... have the tensors'
    addresses, and %r0 the thread's number."""
    names = [f"snippet_param_{n}" for n in range(len(tensors))]
    head = HEADER.format(
        target=target,
        threads=threads,
        parameters=", ".join(f".param .u64 .ptr .global .align 1 {name}" for name in names),
        loads=" ".join(f"ld.param.b64 %rd{n}, [{name}];" for n, name in enumerate(names)),
    )
    kernel = parse(f"{head}{body}\nret;\n}}")
    memory = GlobalMemory()
    for tensor in tensors:
        memory.allow(tensor.data_ptr(), tensor.untyped_storage().nbytes())
    groups = -(-threads // 128)
    return run_program(
        EmulatedProgram(
            kernel,
            0,
            Threads(threads, kernel.registers, poison, (0, 0, 0), (1, 1, 1)),
            memory,
            SharedMemory(shared, poison),
            {name: tensor.data_ptr() for name, tensor in zip(names, tensors, strict=True)},
            np.zeros(threads, np.int64),
            products=[[] for _ in range(groups)],
            batches=[0] * groups,
        )
    )
