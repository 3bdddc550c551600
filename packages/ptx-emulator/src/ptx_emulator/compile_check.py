"""Compiles kernels for a GPU that is not there, through their launchers.

    with compiling(90) as compiled:
        rms_norm(torch.empty((4, 4096), dtype=torch.bfloat16, device="meta"), ...)

Inside, Triton believes in a device of this compute capability (90: an H100 or H200), a launch compiles and
does not launch, and `compiled` lists what came of it. So what is looked at is what a launcher chooses: its
sizes, its variant, and what Triton makes of the arguments (a stride of 1, a multiple of 16). Tensors on
torch's meta device have shapes and strides and no memory.

Not in a process with TRITON_INTERPRET=1, and not beside a real device: the belief is global.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.triton.assembler import choose_assembler
from kernels.triton.capabilities import CAPABILITIES, DEFAULT, Capability, assume


@dataclass(frozen=True)
class Compiled:
    """One kernel in one configuration, and what it takes of a processor."""

    name: str
    capability: int
    constants: dict[str, Any]
    warps: int
    stages: int
    registers: int  # per thread
    spilled: int  # bytes per thread that did not fit into registers: stack and local memory
    shared: int  # bytes per program
    products: str  # "wgmma", "tcgen05", "mma" or ""
    widest_load: int  # bytes of the widest load from global memory in one instruction of a thread
    widest_copy: int  # the same of those that go to shared memory while the program computes: cp.async
    sums: list[str]  # where products and reductions add, and over how many threads: kinds, in order
    advice: list[str]  # performance warnings of the assembler

    @property
    def programs(self) -> int:
        """That fit on one processor at a time, by registers, shared memory and threads."""
        return CAPABILITIES[self.capability].resident(self.registers, self.shared, self.warps)

    @property
    def fits(self) -> bool:
        """Whether nothing spills, and a program has no more shared memory than there is: Triton compiles what
        has more without a word."""
        return not self.spilled and self.shared <= CAPABILITIES[self.capability].shared_limit


class _Device:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability  # Triton keeps what it has compiled, and the target, by this number

    def get_current_stream(self, device: int = 0) -> int:
        return 0


@contextmanager
def compiling(capability: int = DEFAULT) -> Iterator[list[Compiled]]:
    """Inside, launches compile for this compute capability; yields the list of what was compiled."""
    results: list[Compiled] = []
    known: dict[int, Compiled] = {}
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        with redirect_stdout(StringIO()) as said:
            binary = run(kernel, *args, grid=grid, warmup=True, **options)
        if id(binary) not in known:
            known[id(binary)] = inspect(binary, limits, said.getvalue())
            results.append(known[id(binary)])
        return binary

    patch = mock.patch.object(JITFunction, "run", compile_only)
    with believing(capability) as limits, patch, knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        yield results


@contextmanager
def believing(capability: int) -> Iterator[Capability]:
    """Inside, Triton compiles for a device of this compute capability, and finds it."""
    before = getattr(driver, "_active", None)
    choose_assembler(divmod(capability, 10), cuda=None)
    driver.set_active(_Device(capability))
    try:
        with assume(capability) as limits:
            yield limits
    finally:
        driver._active = before


def inspect(binary: Any, capability: Capability, log: str) -> Compiled:
    """What a compiled kernel of Triton's consists of. log: what the assembler said of it, if it was assembled
    now and does not come from Triton's cache."""
    ptx, metadata = binary.asm["ptx"], binary.metadata
    grouped = _products(ptx) == "wgmma"
    usage = _resource_usage(binary.asm["cubin"])
    names = binary.src.fn.arg_names
    constants = {
        names[path[0]]: getattr(value, "value", value) for path, value in binary.src.constants.items()
    }
    return Compiled(
        binary.src.fn.__name__,
        capability.number,
        constants,
        metadata.num_warps,
        metadata.num_stages,
        usage["REG"],
        usage["STACK"] + usage["LOCAL"],
        metadata.shared,
        _products(ptx),
        max(_loads(ptx) + _copies(ptx), default=0),
        max(_copies(ptx), default=0),
        _sums(binary.asm["ttgir"]),
        # The assembler has advice about products of groups of warps alone, and assembling once more takes
        # time.
        _advice(log if "Compiling entry" in log else _assemble(ptx, capability)) if grouped else [],
    )


def _assemble(ptx: str, capability: Capability) -> str:
    """Returns what the assembler says about a kernel, with Triton's options."""
    words = ["-v", "--regAllocOptLevel=2", f"--gpu-name={capability}a", "-o", os.devnull, "-"]
    tool = get_ptxas(capability.number).path
    run = subprocess.run([tool, *words], input=ptx, capture_output=True, text=True, check=True)
    return run.stdout + run.stderr


def _advice(log: str) -> list[str]:
    """Returns the assembler's performance warnings (C75xx), such as products of matrices that it
    serializes."""
    return sorted(set(re.findall(r"\(C75\d\d\)[^\n]*", log)))


def _sums(code: str) -> list[str]:
    """Returns the operations that add values of a tile, with the layout of what they add: which thread has
    which values decides on the order. code: Triton's for GPUs, in which layouts have names."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    reduced = re.findall(r"\}\) : \(tensor<(\w+), (#\w+)>\) -> ", code)
    multiplied = re.findall(r" (?:tt\.dot|ttng\.warp_group_dot) .* -> tensor<(\w+), (#\w+)>", code)
    found = [("reduce", *each) for each in reduced] + [("dot", *each) for each in multiplied]
    return sorted({f"{kind} {what} {layouts.get(name, name)}" for kind, what, name in found})


def _products(ptx: str) -> str:
    """Returns the family of matrix instructions; "": none."""
    families = {"wgmma": "wgmma.mma_async", "tcgen05": "tcgen05.mma", "mma": "mma.sync"}
    return next((name for name, instruction in families.items() if instruction in ptx), "")


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """Returns what the assembler counted: REG, STACK, LOCAL, ..."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", text.stdout)}


def _loads(ptx: str) -> list[int]:
    """Returns the bytes of each load: 16 of ld.global.v4.b32."""
    found = re.findall(r"ld\.global(?:\.[a-zA-Z_0-9:]+)*?(?:\.v(\d))?\.b(\d+)", ptx)
    return [int(count or 1) * int(bits) // 8 for count, bits in found]


def _copies(ptx: str) -> list[int]:
    """Returns the bytes of each copy: 16 of cp.async.cg.shared.global [a], [b], 0x10."""
    found = re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^,]+, \[[^,]+, 0x([0-9a-f]+)", ptx)
    return [int(size, 16) for size in found]
