"""LLVM code to machine code, by llvmlite, and what becomes of that: functions of this process, or whatever
another linker makes of code for a processor that this host is not (kernels.cpu.instruction_sets.compile_for).
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from kernels.cpu.instruction_sets import AARCH64, AVX512_BF16, use_target_set


@cache
def target_machine() -> Any:
    """The processor and the instruction set that kernels are compiled for: those of this host, or those that
    kernels.cpu.instruction_sets.compile_for() was given."""
    if target_triple() == llvm.get_process_triple():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target_triple()).create_target_machine(
        cpu=target_cpu(),
        features=target_features(),
        opt=3,
        reloc="static" if target_triple().startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def target_triple() -> str:
    """LLVM's name of what kernels are compiled for."""
    chosen, host = use_target_set(), llvm.get_process_triple()
    return host if chosen is None or host.startswith(chosen.architecture) else chosen.triple


def target_cpu() -> str:
    """LLVM's name of the processor. Names of aarch64 ones imply instructions that no set of ours names, SVE
    among them: code for those is for any."""
    return "generic" if target_triple().startswith(AARCH64) else llvm.get_host_cpu_name()


@cache
def host_features() -> dict[str, bool]:
    """Of the CPU that we run on, by LLVM's names."""
    return dict(llvm.get_host_cpu_features())


def target_features() -> str:
    """Of the instruction set that this process computes with: "+avx2,-avx512f,...". The best set of x86-64
    comes with whatever else the CPU has; no other uses an instruction that it does not name."""
    chosen, host = use_target_set(), host_features()
    if chosen is not None and chosen.architecture == AARCH64:
        return ",".join(f"+{name}" for name in sorted(chosen.features))
    allowed = set(host if chosen in (None, AVX512_BF16) else chosen.features)
    if "avx512f" in allowed:
        allowed.add("evex512")  # registers of 512 bits: LLVM 20 (llvmlite 0.47) has it, LLVM 22 does not
    return ",".join(f"{'+' if has and name in allowed else '-'}{name}" for name, has in host.items())


@cache
def target_name() -> str:
    """What machine code depends on, besides the kernels: LLVM, the CPU, and the instruction set."""
    return f"{llvmlite.__version__} {target_triple()} {target_cpu()} {target_features()}"


def assemble(code: str) -> bytes:
    """Optimizes LLVM code; returns an object file."""
    machine = target_machine()
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = target_triple(), str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


@cache
def _engine() -> Any:
    """What links object files. It lives, and with it the target machine, as long as the process."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


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
        """The function stays in memory as long as the process."""
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        return int(engine.get_function_address(name))

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
