"""What every x86-64 processor has."""

from abc import abstractmethod
from typing import Any

from llvmlite import ir

from kernels.cpu.instruction_sets import X86_64
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.operations import Operations
from kernels.cpu.isa.vectors import call


class X86(Operations):
    """Base class of its instruction sets."""

    futex = 202

    def pause(self, builder: Any) -> None:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())


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
