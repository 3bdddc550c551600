"""What one core does at most, by kernels in the instruction set that this process computes with: products and
sums that never leave the registers, and reading an array that no cache holds.

    python -m benchmarks.cpu_peaks                              # in CPU time, the best of some tries
    PAGEWIRE_CPU_KERNELS=avx512_bf16 python -m benchmarks.cpu_peaks
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.cpu.instruction_sets import AUTO, select

if __name__ == "__main__":  # before the first kernel is compiled
    select(os.environ.get("PAGEWIRE_CPU_KERNELS", AUTO))

from kernels.cpu.compiler import types  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.language import intrinsic  # noqa: E402
from kernels.cpu.isa.dot import Dot  # noqa: E402
from kernels.cpu.isa.selected import OPERATIONS  # noqa: E402
from kernels.cpu.isa.vectors import F32S, I32S, call, load, repeat, splat, store, word  # noqa: E402

SUMS = 6 if OPERATIONS.rereads_weights else 12
"""Vectors side by side: twelve registers, so that no sum waits for the one before it."""
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


def _make_dots(dot: Dot) -> Any:
    """dots(at, loops): dot products of whole words."""

    @intrinsic(types.void(types.int64, types.int64))
    def dots(builder: Any, at: Any, loops: Any) -> None:
        words = load(builder, at, I32S)
        parts = list(zip(dot.weights(builder, words), dot.inputs(builder, words), strict=True))
        sums = [load(builder, builder.add(at, word(64 * i)), dot.sums) for i in range(SUMS)]

        def add(i: Any, before: list[Any]) -> list[Any]:
            for weight, value in parts:
                before = [dot.add(builder, total, weight, value) for total in before]
            return before

        for i, total in enumerate(repeat(builder, loops, sums, add)):
            store(builder, total, builder.add(at, word(64 * i)))

    return dots


_multiply_pairs, _multiply_quads = _make_dots(OPERATIONS.pairs), _make_dots(OPERATIONS.quads)


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
def _pairs_loop(at: int, loops: int) -> None:
    _multiply_pairs(at, loops)


@compiled
def _quads_loop(at: int, loops: int) -> None:
    _multiply_quads(at, loops)


@compiled
def _read_loop(at: int, loops: int, out: int) -> None:
    _read(at, loops, out)


def peak_gflops(clock: Clock, tries: int = 5) -> float:
    """Of float32, the best of some tries."""
    return _rate(_multiply_loop, 1, clock, tries)


def peak_pairs(clock: Clock, tries: int = 5) -> float:
    """GFLOP/s of bfloat16."""
    return _rate(_pairs_loop, 2, clock, tries)


def peak_quads(clock: Clock, tries: int = 5) -> float:
    """GOP/s of 8-bit integers."""
    return _rate(_quads_loop, 4, clock, tries)


def _rate(loop: Callable[[int, int], None], values: int, clock: Clock, tries: int) -> float:
    """values: of a word."""
    memory = np.zeros(16 * SUMS, np.float32)
    seconds = _best(lambda: loop(memory.ctypes.data, LOOPS), clock, tries)
    return 2e-9 * 16 * values * SUMS * LOOPS / seconds


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


if __name__ == "__main__":
    CLOCK = time.process_time
    print(f"{peak_gflops(CLOCK):.0f} GFLOP/s in float32, {peak_pairs(CLOCK):.0f} in bfloat16")
    print(f"{peak_quads(CLOCK):.0f} GOP/s in int8, {peak_read(CLOCK):.1f} GB/s read")
