"""What becomes of machine code: functions of this process, or whatever another linker makes of code for a
processor that this host is not (kernels.cpu.instruction_sets.compile_for)."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from kernels.cpu.compiler import llvm


class Linker(ABC):
    """Takes object files, of which each has one function that others call, named as the kernel is."""

    @abstractmethod
    def load(self, machine_code: bytes, name: str) -> int:
        """The address of that function, as kernels call it. machine_code: an object file."""

    @abstractmethod
    def function(self, address: int, kinds: Sequence[Any]) -> Callable[..., Any]:
        """What Python calls for the function at an address. kinds: ctypes' types of its result and of its
        arguments."""


class HostLinker(Linker):
    """Into this process."""

    def load(self, machine_code: bytes, name: str) -> int:
        return llvm.load(machine_code, name)

    def function(self, address: int, kinds: Sequence[Any]) -> Callable[..., Any]:
        """The function does not hold the interpreter's lock while it runs."""
        return ctypes.CFUNCTYPE(*kinds)(address)


class Collector(Linker):
    """Keeps object files, whose functions cannot be called here."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        """By the names of the kernels."""

    def load(self, machine_code: bytes, name: str) -> int:
        """There is no address."""
        self.objects[name] = machine_code
        return 0

    def function(self, address: int, kinds: Sequence[Any]) -> Callable[..., Any]:
        """The result raises RuntimeError."""

        def refuse(*args: object) -> None:
            raise RuntimeError("this kernel is compiled for a processor that this host is not")

        return refuse


_linker: Linker = HostLinker()


def link_with(linker: Linker) -> None:
    """Of kernels that are compiled from now on."""
    global _linker
    _linker = linker


def current_linker() -> Linker:
    return _linker
