"""An emulated aarch64 processor (Unicorn) that sees the memory of this process."""

import ctypes
import math
import mmap
import struct
from collections.abc import Callable, Sequence

import unicorn
from unicorn import arm64_const as arm64

STACK_BYTES = 1 << 20
_PAGE = mmap.PAGESIZE


class Processor:
    """Runs functions at addresses of this process, where code for aarch64 lies."""

    def __init__(self) -> None:
        self._emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._emulator.ctl_set_cpu_model(arm64.UC_CPU_ARM64_MAX)
        self._emulator.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vectors are allowed
        self._emulator.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._map)
        self._mapped: list[tuple[int, int]] = []
        self._stack = mmap.mmap(-1, STACK_BYTES)
        self._stack_end = ctypes.addressof(ctypes.c_char.from_buffer(self._stack)) + STACK_BYTES
        self._functions: dict[str, Callable[[], None]] = {
            "memcpy": self._copy,
            "memmove": self._copy,
            "memset": self._fill,
            "log": self._logarithm,
            "syscall": self._succeed,
            "sched_yield": self._succeed,
        }

    def call(self, address: int, numbers: Sequence[int], floats: Sequence[float]) -> tuple[int, float]:
        """Runs a function with these arguments. Returns what it leaves in the registers of an int64 and of a
        float64 result."""
        for index, number in enumerate(numbers):
            self._emulator.reg_write(arm64.UC_ARM64_REG_X0 + index, number & (1 << 64) - 1)
        for index, real in enumerate(floats):
            self._emulator.reg_write(arm64.UC_ARM64_REG_D0 + index, _bits(real))
        end = self._stack_end - 64
        self._emulator.reg_write(arm64.UC_ARM64_REG_SP, end)
        self._emulator.reg_write(arm64.UC_ARM64_REG_X30, end)
        self._emulator.emu_start(address, end)
        number = self._emulator.reg_read(arm64.UC_ARM64_REG_X0)
        return (number ^ 1 << 63) - (1 << 63), self._float()

    def provide(self, name: str, address: int) -> None:
        """Computes a function of the C library when the processor comes to an address, where it returns."""
        compute = self._functions[name]
        self._emulator.hook_add(unicorn.UC_HOOK_CODE, lambda *_: compute(), begin=address, end=address)

    def _map(self, emulator: unicorn.Uc, access: int, address: int, *_: object) -> bool:
        """The memory of this process around an address. False: there is none."""
        for begin, end in _memory_of_process():
            if begin <= address < end:
                first = max([begin, *(last for _, last in self._mapped if last <= address)])
                behind = min([end, *(start for start, _ in self._mapped if start > address)])
                emulator.mem_map_ptr(first, behind - first, unicorn.UC_PROT_ALL, first)
                self._mapped.append((first, behind))
                return True
        return False

    def _number(self, index: int) -> int:
        value: int = self._emulator.reg_read(arm64.UC_ARM64_REG_X0 + index)
        return value

    def _float(self) -> float:
        bits: int = self._emulator.reg_read(arm64.UC_ARM64_REG_D0)
        return ctypes.c_double.from_buffer_copy(bits.to_bytes(8, "little")).value

    def _copy(self) -> None:
        ctypes.memmove(self._number(0), self._number(1), self._number(2))

    def _fill(self) -> None:
        ctypes.memset(self._number(0), self._number(1) & 0xFF, self._number(2))

    def _succeed(self) -> None:
        """Of system calls there are those that wake other threads, and there are none."""
        self._emulator.reg_write(arm64.UC_ARM64_REG_X0, 0)

    def _logarithm(self) -> None:
        self._emulator.reg_write(arm64.UC_ARM64_REG_D0, _bits(math.log(self._float())))


def _bits(value: float) -> int:
    """Of a float64."""
    return int.from_bytes(struct.pack("<d", value), "little")


def _memory_of_process() -> list[tuple[int, int]]:
    """First and last addresses of what is mapped."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return [(int(first, 16), int(last, 16)) for first, last in ranges]
