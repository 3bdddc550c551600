"""What one core does at most, by kernels in the instruction set that this process computes with: products and
sums of float32 that never leave the registers, and reading an array that no cache holds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.vectors import F32S, I32S, call, load, repeat, splat, store, word

SUMS = 6
"""Vectors side by side: twelve registers of 256 bits, so that no sum waits for the one before it."""
LOOPS = 5_000_000
BYTES = 1 << 28
"""Of the array."""
_LINES = 4

Clock = Callable[[], float]


@intrinsic(types.void(types.int64, types.int64))
def _multiply(builder: Any, at: Any, loops: Any) -> None:
    factor = load(builder, at, F32S)
    sums = [load(builder, builder.add(at, word(64 * i)), F32S) for i in range(SUMS)]

    def add(i: Any, before: list[Any]) -> list[Any]:
        return [call(builder, "llvm.fma.v16f32", F32S, total, factor, factor) for total in before]

    for i, total in enumerate(repeat(builder, loops, sums, add)):
        store(builder, total, builder.add(at, word(64 * i)))


@intrinsic(types.void(*[types.int64] * 3))
def _read(builder: Any, at: Any, loops: Any, out: Any) -> None:
    def add(i: Any, before: list[Any]) -> list[Any]:
        lines = builder.add(at, builder.mul(i, word(64 * _LINES)))
        loaded = [load(builder, builder.add(lines, word(64 * n)), I32S) for n in range(_LINES)]
        return [builder.add(total, line) for total, line in zip(before, loaded, strict=True)]

    first, *others = repeat(builder, loops, [splat(I32S, 0)] * _LINES, add)
    for total in others:
        first = builder.add(first, total)
    store(builder, first, out)


@compiled
def _multiply_loop(at: int, loops: int) -> None:
    _multiply(at, loops)


@compiled
def _read_loop(at: int, loops: int, out: int) -> None:
    _read(at, loops, out)


def peak_gflops(clock: Clock, tries: int = 5) -> float:
    """Of float32, the best of some tries."""
    memory = np.zeros(16 * SUMS, np.float32)
    seconds = _best(lambda: _multiply_loop(memory.ctypes.data, LOOPS), clock, tries)
    return 2e-9 * 16 * SUMS * LOOPS / seconds


def peak_read(clock: Clock, tries: int = 5) -> float:
    """GB/s, the best of some tries."""
    memory, out = np.ones(BYTES // 4, np.int32), np.zeros(16, np.int32)
    loops = BYTES // (64 * _LINES)
    seconds = _best(lambda: _read_loop(memory.ctypes.data, loops, out.ctypes.data), clock, tries)
    return 1e-9 * BYTES / seconds


def _best(call: Callable[[], None], clock: Clock, tries: int) -> float:
    times = []
    for _ in range(tries):
        began = clock()
        call()
        times.append(clock() - began)
    return min(times)
