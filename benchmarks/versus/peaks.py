"""What a machine can do at most: bytes read from memory, and products of bfloat16 and int8, per second.

    python -m benchmarks.versus.peaks 2     # threads: {"bandwidth": ..., "bf16": ..., "int8": ...}

Reading finds the largest number of an array that no cache holds; products are loops of instructions in
registers, twelve sums at a time: vpdpbusd, and the faster one of vdpbf16ps and vfmadd, on values that were
widened. Each is the best of some tries: a limit is what was reached once.
On a CPU without these instructions the peaks are those of torch's product of float32, which may be exceeded.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from timeit import repeat
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, set_num_threads, types
from numba.core import cgutils
from numba.extending import intrinsic

from benchmarks.versus.roof import Limits, reading
from kernels.cpu.instruction_sets import AVX512_BF16, AVX512_VBMI, host_sets, selected_set

BYTES = 1 << 30
"""Of the array."""
READS = 7
SUMS = 12
"""Side by side, so that none waits for the one before it: latency times rate is at most ten."""
LOOPS = 5_000_000
"""About a tenth of a second."""
TRIES = 8

I64 = ir.IntType(64)
F32S, I32S = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(32), 16)


class BFloats(ir.types.Type):  # type: ignore[misc]  # llvmlite has no annotations
    """<32 x bfloat>: a type that llvmlite does not know."""

    def _to_string(self) -> str:
        return "<32 x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloats)

    def __hash__(self) -> int:
        return hash(BFloats)


def _product_loop(name: str, sums: Any, operand: Any) -> Any:
    """A function that runs an instruction: LLVM's name for it, the types of its sums and operands."""

    @intrinsic
    def run(context: Any, loops: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            times, value = arguments
            lanes = builder.insert_element(ir.Constant(I32S, ir.Undefined), value, ir.IntType(32)(0))
            filled = builder.shuffle_vector(lanes, lanes, ir.Constant(I32S, [0] * 16))
            factor = builder.bitcast(filled, operand)
            kind = ir.FunctionType(sums, [sums, operand, operand])
            instruction = cgutils.get_or_insert_function(builder.module, kind, name)
            before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            index, current = builder.phi(I64), [builder.phi(sums) for _ in range(SUMS)]
            following = [builder.call(instruction, [phi, factor, factor]) for phi in current]
            step = builder.add(index, I64(1))
            index.add_incoming(I64(0), before)
            index.add_incoming(step, loop)
            for number, (phi, value) in enumerate(zip(current, following, strict=True)):
                phi.add_incoming(ir.Constant(sums, [number] * 16), before)  # equal ones would be merged
                phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", step, times), loop, after)
            builder.position_at_end(after)
            total = builder.bitcast(following[0], I32S)
            for each in following[1:]:
                total = builder.xor(total, builder.bitcast(each, I32S))
            return builder.extract_element(total, ir.IntType(32)(0))

        return types.int32(types.int64, types.int32), code

    @njit(parallel=True)
    def on_all(threads: int, loops: int, bits: int) -> Any:
        results = np.zeros(threads, np.int32)
        for thread in prange(threads):
            results[thread] = run(loops, bits)
        return results

    return on_all


def _best(tries: int, call: Callable[[], object]) -> float:
    """Seconds."""
    return min(repeat(call, number=1, repeat=tries + 1))  # the first one compiles


def instruction_peaks(threads: int) -> tuple[float, float]:
    """Of bfloat16 and of int8."""
    bf16 = _product_loop("llvm.x86.avx512bf16.dpbf16ps.512", F32S, BFloats())
    wide = _product_loop("llvm.fma.v16f32", F32S, F32S)
    int8 = _product_loop("llvm.x86.avx512.vpdpbusd.512", I32S, I32S)
    small, near_one = 0x0001_0001, 0x3F80_3F80
    each = threads * LOOPS * SUMS * 2
    return (
        max(
            each * 32 / _best(TRIES, lambda: bf16(threads, LOOPS, small)),
            each * 16 / _best(TRIES, lambda: wide(threads, LOOPS, near_one)),
        ),
        each * 64 / _best(TRIES, lambda: int8(threads, LOOPS, small)),
    )


def torch_peaks(threads: int) -> tuple[float, float]:
    """What a large product of float32 reaches, taken for both."""
    import torch

    torch.set_num_threads(threads)
    matrix = torch.randn(2048, 2048)
    peak = 2 * 2048**3 / _best(TRIES, lambda: matrix @ matrix)
    return peak, peak


def measure(threads: int) -> Limits:
    """On so many threads; takes some seconds."""
    set_num_threads(threads)
    has_both = AVX512_BF16 in host_sets() and selected_set() in (AVX512_BF16, AVX512_VBMI)
    peaks = instruction_peaks(threads) if has_both else torch_peaks(threads)
    return Limits(BYTES / _best(READS, reading(BYTES, threads)), *peaks)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
