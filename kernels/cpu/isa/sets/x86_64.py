"""What every x86-64 processor has."""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.operations import Operations
from kernels.cpu.isa.vectors import call


class X86(Operations):
    """Base class of its instruction sets."""

    futex = 202

    def pause(self, builder: Any) -> None:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())


OPERATIONS = X86()
