"""Runs Triton's launches on the emulator: each is compiled for a GPU that is not there, and its PTX runs on
the memory of CPU tensors.

    with emulating(90) as emulator:
        rms_norm(x, weight, eps)  # on CPU tensors
    emulator.launches  # kernels, programs and instructions of each

Not in a process with TRITON_INTERPRET=1, and not beside a real device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime.jit import JITFunction

from ptx_emulator.asynchronous import GROUP
from ptx_emulator.compile_check import believing
from ptx_emulator.machine import run_program
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.parser import Kernel, parse
from ptx_emulator.program import EmulatedProgram
from ptx_emulator.threads import Threads

POISON = 0xFF


@dataclass(frozen=True)
class EmulatedLaunch:
    """What one launch was."""

    name: str
    programs: int
    instructions: int


@dataclass
class Emulator:
    """Runs launches. `edit` may change a kernel's PTX before it is read: a test plants its bugs there."""

    poison: int = POISON  # the byte that registers and shared memory begin with
    edit: Callable[[str], str] = lambda ptx: ptx
    reverse: bool = False  # the last program runs first
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    launches: list[EmulatedLaunch] = field(default_factory=list)
    _storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # kept: nothing else comes there
    _kernels: dict[int, tuple[Any, Kernel]] = field(default_factory=dict)

    def allow(self, tensor: torch.Tensor) -> None:
        """Makes a tensor's memory reachable by launches that get its address in another way than as an
        argument."""
        storage = tensor.untyped_storage()
        if self._storages.setdefault(storage.data_ptr(), storage).nbytes():
            self.memory.allow(storage.data_ptr(), storage.nbytes())

    def launch(self, binary: Any, arguments: Sequence[Any], grid: tuple[int, ...]) -> None:
        """Runs all programs of a compiled kernel. arguments: those that are no constants, in their order."""
        if id(binary) not in self._kernels:  # the binary is kept, so that its id stays its own
            self._kernels[id(binary)] = binary, parse(self.edit(binary.asm["ptx"]))
        kernel = self._kernels[id(binary)][1]
        for each in arguments:
            if isinstance(each, torch.Tensor):
                self.allow(each)
        values = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments]
        values += [0] * (
            len(kernel.parameters) - len(values)
        )  # Triton's own scratch memory, which is not used
        parameters = {name: value for (name, _), value in zip(kernel.parameters, values, strict=True)}
        self.memory.forget_accesses()
        sizes = (*grid, 1, 1)[:3]
        order = list(np.ndindex(*sizes[::-1]))
        count = 0
        for number, (z, y, x) in enumerate(reversed(order) if self.reverse else order):
            threads = Threads(kernel.threads, kernel.registers, self.poison, (x, y, z), sizes)
            shared = SharedMemory(binary.metadata.shared, self.poison)
            groups = -(-kernel.threads // GROUP)
            copies = np.zeros(kernel.threads, np.int64)
            count += run_program(
                EmulatedProgram(
                    kernel, number, threads, self.memory, shared, parameters, copies,
                    products=[[] for _ in range(groups)], batches=[0] * groups,
                )
            )  # fmt: skip
        self.launches.append(EmulatedLaunch(kernel.name, len(order), count))


@contextmanager
def emulating(capability: int, **options: Any) -> Iterator[Emulator]:
    """Inside, launches of Triton's kernels run on the emulator, as compiled for this compute capability (80,
    86, 89, 90, 120). options: Emulator's fields."""
    emulator = Emulator(**options)
    run = JITFunction.run

    def emulate(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        binary = run(kernel, *args, grid=grid, warmup=True, **named)
        bound = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
        for parameter in kernel.params:
            if parameter.name not in bound and parameter.has_default:
                bound[parameter.name] = parameter.default
        constants = {path[0] for path in binary.src.constants}
        arguments = [bound[name] for n, name in enumerate(kernel.arg_names) if n not in constants]
        sizes = grid(bound) if callable(grid) else grid
        emulator.launch(binary, arguments, tuple(sizes))
        return binary

    with believing(capability), mock.patch.object(JITFunction, "run", emulate):
        yield emulator
