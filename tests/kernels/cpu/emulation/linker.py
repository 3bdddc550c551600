"""Links object files of kernels into an emulated aarch64 processor, and calls their functions there.

The processor sees the memory of this process, at the same addresses: kernels that it runs read and write
tensors and records where Python has them. It has one thread.
"""

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kernels.cpu.compiler.llvm import Linker
from scripts.object_file import ObjectFile, Relocation
from tests.kernels.cpu.emulation.processor import Processor

ARENA_BYTES = 1 << 26
_MOVES = {264: 0, 266: 16, 268: 32, 269: 48}
"""R_AARCH64_MOVW_UABS_G0_NC .. G3: the lowest of 16 bits of an address that an instruction loads."""
_WORD, _JUMP, _CALL = 257, 282, 283
"""R_AARCH64_ABS64, JUMP26 and CALL26."""


class EmulatorLinker(Linker):
    """Functions are run by an emulated processor."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._arena = mmap.mmap(-1, ARENA_BYTES)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._arena))
        self._used = 0
        self._near: dict[str, int] = {}  # addresses of jumps to functions of the C library

    def load(self, machine_code: bytes, name: str) -> int:
        """See Linker."""
        file = ObjectFile(machine_code)
        addresses = [self._place(one.contents) if one.is_loaded else 0 for one in file.sections]
        for relocation in file.relocations():
            if file.sections[relocation.section].name.startswith(".text"):
                self._relocate(relocation, addresses)
        (symbol,) = (one for one in file.symbols if one.name == name)
        return addresses[symbol.section] + symbol.value

    def function(self, address: int, kinds: Sequence[Any]) -> Callable[..., Any]:
        """See Linker."""
        result, *parameters = kinds

        def run(*given: Any) -> Any:
            numbers, floats = [], []
            for value, kind in zip(given, parameters, strict=True):
                if kind is ctypes.c_double:
                    floats.append(float(value))
                else:
                    numbers.append(value if isinstance(value, int) else ctypes.addressof(value))
            number, real = self._processor.call(address, numbers, floats)
            return {None: None, ctypes.c_double: real, ctypes.c_bool: bool(number & 1)}.get(result, number)

        return run

    def _place(self, contents: bytes) -> int:
        """Returns where they lie."""
        at = self._used
        assert at + len(contents) <= ARENA_BYTES, "the emulated processor has no room for more kernels"
        self._arena[at : at + len(contents)] = contents
        self._used = (at + len(contents) + 63) // 64 * 64
        return self._begin + at

    def _relocate(self, relocation: Relocation, addresses: list[int]) -> None:
        at, symbol = addresses[relocation.section] + relocation.offset, relocation.symbol
        target = addresses[symbol.section] + symbol.value if symbol.section else self._jump_to(symbol.name)
        target += relocation.addend
        if relocation.kind == _WORD:
            ctypes.c_uint64.from_address(at).value = target
            return
        instruction = ctypes.c_uint32.from_address(at)
        if relocation.kind in _MOVES:
            instruction.value |= (target >> _MOVES[relocation.kind] & 0xFFFF) << 5
        elif relocation.kind in (_JUMP, _CALL):
            instruction.value |= (target - at) >> 2 & 0x3FFFFFF
        else:
            raise ValueError(f"a relocation of kind {relocation.kind}, which the linker does not know")

    def _jump_to(self, name: str) -> int:
        """Where a function of the C library is called, which Python computes."""
        if name not in self._near:
            code = struct.pack("<I", 0xD65F03C0)  # ret
            self._near[name] = self._place(code)
            self._processor.provide(name, self._near[name])
        return self._near[name]
