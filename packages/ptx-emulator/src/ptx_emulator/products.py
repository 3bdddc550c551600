"""What tensor cores compute, and how matrices lie in the registers of a warp and in shared memory.

The order of addition is what measurements have published of it (Fasi et al., "Numerical behavior of NVIDIA
tensor cores", 2021, and later ones for Hopper): products are exact; those of a block of k and the accumulator
are aligned to the largest exponent among them, truncated there, added, and the sum is truncated to float32. A
block has 8 products on 8.x and 16 on 9.0. No card has confirmed that here.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import floats

Array = NDArray[Any]
WARP = 32
_LANE = np.arange(WARP)
_ROW, _PAIR = _LANE >> 2, 2 * (_LANE & 3)


class TensorCore(NamedTuple):
    """How a generation adds."""

    block: int  # products that are added at once
    guard: int  # bits kept below a float32's last one


def tensor_core(target: int) -> TensorCore:
    """target: 80, 86, 89, 90, 120."""
    return TensorCore(16, 2) if target >= 90 else TensorCore(8, 1)


def multiply(a: Array, b: Array, c: Array, core: TensorCore) -> Array:
    """a: float32 [..., m, k]; b: float32 [..., k, n]; c: float32 [..., m, n]. Returns float32 [..., m, n]."""
    total = c
    for start in range(0, a.shape[-1], core.block):
        part = slice(start, start + core.block)
        left, right = a[..., :, None, part], np.swapaxes(b, -1, -2)[..., None, :, part]
        products = left.astype(np.float64) * right.astype(np.float64)
        total = _add(np.concatenate([products, total[..., None].astype(np.float64)], axis=-1), core.guard)
    return total


def _add(terms: Array, guard: int) -> Array:
    """Adds the last axis as a tensor core does."""
    with np.errstate(all="ignore"):
        _, exponents = np.frexp(terms)
        largest = np.where(terms == 0, -10_000, exponents).max(axis=-1, keepdims=True)
        unit = np.ldexp(1.0, np.maximum(largest, -120) - 24 - guard)
        aligned = np.where(np.isfinite(terms), np.trunc(terms / unit) * unit, terms)
        return floats.truncate32(aligned.sum(axis=-1))


def values(bits: Array, kind: str) -> Array:
    """bits: uint16 of any shape; kind: "bf16" or "f16". Returns float32."""
    return floats.from_bfloat16(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def halves(registers: list[Array]) -> Array:
    """Registers of two 16-bit values, uint32 [threads] each. Returns uint16 [threads, 2 * registers]."""
    return np.ascontiguousarray(np.stack(registers, axis=1)).view(np.uint16)


def left_matrix(registers: list[Array]) -> Array:
    """The four registers of a 16 x 16 left matrix, of whole warps. Returns uint16 [warps, 16, 16]."""
    lanes = halves(registers).reshape(-1, WARP, 4, 2)
    out = np.empty((len(lanes), 16, 16), np.uint16)
    for register, (row, column) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
        for half in (0, 1):
            out[:, _ROW + row, _PAIR + column + half] = lanes[:, :, register, half]
    return out


def right_matrix(registers: list[Array]) -> Array:
    """The two registers of a 16 x 8 right matrix. Returns uint16 [warps, 16, 8]."""
    lanes = halves(registers).reshape(-1, WARP, 2, 2)
    out = np.empty((len(lanes), 16, 8), np.uint16)
    for register in (0, 1):
        for half in (0, 1):
            out[:, _PAIR + 8 * register + half, _ROW] = lanes[:, :, register, half]
    return out


def accumulators(registers: list[Array]) -> Array:
    """Registers of float32 as uint32: four for each 8 columns. Returns float32 [warps, 16, 2 * registers]."""
    lanes = np.stack(registers, axis=1).view(np.float32).reshape(-1, WARP, len(registers))
    out = np.empty((len(lanes), 16, 2 * len(registers)), np.float32)
    for n in range(len(registers)):
        out[:, _ROW + 8 * ((n >> 1) & 1), 8 * (n >> 2) + _PAIR + (n & 1)] = lanes[:, :, n]
    return out


def accumulator_registers(matrix: Array) -> list[Array]:
    """The inverse of `accumulators`: uint32 [threads] each."""
    count = matrix.shape[-1] // 2
    found = []
    for n in range(count):
        lanes = matrix[:, _ROW + 8 * ((n >> 1) & 1), 8 * (n >> 2) + _PAIR + (n & 1)]
        found.append(np.ascontiguousarray(lanes, np.float32).view(np.uint32).reshape(-1))
    return found


def fragments(matrices: Array, transposed: bool) -> Array:
    """matrices: uint16 [warps, 8, 8], rows as addressed. Returns uint32 [threads]: each lane's pair
    (ldmatrix)."""
    oriented = np.swapaxes(matrices, -1, -2) if transposed else matrices
    pairs = np.stack([oriented[:, _ROW, _PAIR], oriented[:, _ROW, _PAIR + 1]], axis=-1)
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1)


def matrix_rows(register: Array) -> Array:
    """The inverse of `fragments`: uint16 [warps, 8, 8] (stmatrix)."""
    pairs = np.ascontiguousarray(register).view(np.uint16).reshape(-1, WARP, 2)
    out = np.empty((len(pairs), 8, 8), np.uint16)
    for half in (0, 1):
        out[:, _ROW, _PAIR + half] = pairs[:, :, half]
    return out


def descriptor_bytes(descriptor: int, rows: int, depth: int, transposed: bool) -> Array:
    """Where the 16-bit elements of a matrix lie in shared memory, by the descriptor that `wgmma` gets.

    rows: of the left matrix m, of the right one n; depth: k. transposed: rows are contiguous, instead of k.
    Returns int64 [rows, depth]: the offset of each element's first byte.
    """
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    mode = (descriptor >> 62) & 3
    width = {0: 16, 1: 128, 2: 64, 3: 32}[mode]  # bytes of a row of the pattern that is swizzled
    row, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if transposed:
        across = 2 * row
        offset = (across // width) * leading + (k // 8) * stride + (k % 8) * width + across % width
    else:
        along = 2 * k
        offset = (row // 8) * stride + (row % 8) * width + (along // width) * leading + along % width
    return np.asarray(_swizzle(start + offset, width))


def _swizzle(address: Array, width: int) -> Array:
    """Pieces of 16 bytes change places within a row of the pattern, by the row's number."""
    return np.asarray(address ^ (((address >> 7) & (width // 16 - 1)) << 4))
