"""What every x86-64 processor has."""

from abc import abstractmethod
from typing import Any

from llvmlite import ir
from llvmlite.binding import llvm_version_info

from kernels.cpu.instruction_sets import X86_64
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.operations import Operations
from kernels.cpu.isa.vectors import call


class X86(Operations):
    """Base class of its instruction sets."""

    futex = 202

    def pause(self, builder: Any) -> None:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())


def add_products_of_bytes(builder: Any, name: str, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Adds four products of bytes to each sum of 32 bits: vpdpbusd. name: of LLVM's intrinsic, which takes
    registers of bytes from LLVM 22 on, and before (llvmlite 0.47) such of 32 bits."""
    kind = sums.type
    operand = ir.VectorType(ir.IntType(8), 4 * kind.count) if llvm_version_info >= (22,) else kind
    return call(builder, name, kind, sums, *(builder.bitcast(each, operand) for each in (unsigned, signed)))


class ByteSums(Dot):
    """vpmaddubsw, and vpmaddwd by 1. Two products of 7 bits by 8 never exceed 16 bits, nor do four of 6."""

    takes_bytes = False

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        return self.add_sums(builder, sums, self.sums_of_two(builder, weight, value))

    def add_two(self, builder: Any, sums: Any, weights: Any, values: Any) -> Any:
        first, second = (
            self.sums_of_two(builder, weight, value) for weight, value in zip(weights, values, strict=True)
        )
        both = [builder.add(one, other) for one, other in zip(first, second, strict=True)]
        return self.add_sums(builder, sums, both)

    @abstractmethod
    def sums_of_two(self, builder: Any, weight: Any, value: Any) -> list[Any]:
        """Returns sums of two products, 16 bits each, in the registers that the words take."""

    @abstractmethod
    def add_sums(self, builder: Any, sums: Any, registers: list[Any]) -> Any:
        """Adds neighbours of 16 bits to the sums."""


SETS = {X86_64: X86()}
