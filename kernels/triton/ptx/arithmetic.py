"""Instructions of one thread that touch no memory: integers, floats, comparisons, conversions, bits.

`find(parts)` gives what an opcode computes: the PTX types of its operands and of its result, and a function
of numpy arrays. Approximate operations (ex2, rsqrt, div.full) give numpy's rounding of the exact result; what
a GPU gives differs in the last bits.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.triton.ptx import floats
from kernels.triton.ptx.parser import PtxError

Array = NDArray[Any]
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
_COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_ROUNDINGS = ("rn", "rz", "rni", "sat", "satfinite", "ftz", "approx", "full", "relu")


class ScalarOperation(NamedTuple):
    """What an opcode computes."""

    sources: tuple[str, ...]  # PTX types of the operands; the last one repeats where there are more
    result: str  # PTX type
    compute: Callable[..., Array]


@cache
def find(parts: tuple[str, ...]) -> ScalarOperation:
    """parts: the opcode's, as ("add", "s32"). Raises PtxError for what is not known."""
    name, kind = parts[0], parts[-1]
    if name in ("setp", "cvt", "selp", "mov", "bfe", "prmt", "popc"):
        return {"setp": _setp, "cvt": _cvt}[name](parts) if name in ("setp", "cvt") else _bits(name, kind)
    if name in _LOGIC:
        return ScalarOperation((kind,), kind, _LOGIC[name])
    if name in ("shl", "shr"):
        return ScalarOperation((kind, "u32"), kind, _shift_left if name == "shl" else _shift_right)
    if name == "not":
        return ScalarOperation((kind,), kind, np.invert)
    if name in ("mul", "mad") and parts[1] in ("lo", "hi", "wide"):
        return _integer_product(name, parts[1], kind)
    if kind in ("f32x2", "bf16x2", "s16x2"):
        return _packed(name, kind)
    if name == "fma" and kind == "bf16":
        return ScalarOperation(("bf16", "bf16", "f32"), "f32", _fma_bfloat16)
    found = (_FLOATS if kind.startswith("f") else _INTEGERS).get(name)
    if found is None:
        raise PtxError(f"the emulator does not know {'.'.join(parts)}")
    compute = {"fma": floats.fma64}.get(name, found) if kind == "f64" else found
    return ScalarOperation((kind,), kind, _flushed(compute) if "ftz" in parts and kind == "f32" else compute)


def _flushed(compute: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: floats.flush(np.asarray(compute(*map(floats.flush, values))))


def _quiet(compute: Callable[..., Array]) -> Callable[..., Array]:
    def run(*values: Array) -> Array:
        with np.errstate(all="ignore"):
            return compute(*values)

    return run


def _maximum(*values: Array) -> Array:
    return np.fmax(np.fmax(values[0], values[1]), values[-1])


def _minimum(*values: Array) -> Array:
    return np.fmin(np.fmin(values[0], values[1]), values[-1])


def _integer_quotient(a: Array, b: Array) -> Array:
    """Toward zero; all ones where the divisor is zero."""
    wide, divisor = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    quotient = np.sign(wide) * np.sign(divisor) * (np.abs(wide) // np.abs(divisor))
    return np.asarray(np.where(b == 0, -1, quotient).astype(a.dtype))


def _integer_rest(a: Array, b: Array) -> Array:
    return np.asarray((a - _integer_quotient(a, b) * b).astype(a.dtype))


def _reciprocal64(x: Array) -> Array:
    """rcp.approx.ftz.f64: the upper 32 bits alone."""
    return ((1 / x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def _inverse_root(x: Array) -> Array:
    return (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


_INTEGERS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "div": _integer_quotient,
    "rem": _integer_rest,
}
_FLOATS: dict[str, Callable[..., Array]] = {
    "add": _quiet(np.add),
    "sub": _quiet(np.subtract),
    "mul": _quiet(np.multiply),
    "div": _quiet(np.divide),
    "fma": floats.fma32,
    "neg": np.negative,
    "abs": np.abs,
    "max": _quiet(_maximum),
    "min": _quiet(_minimum),
    "ex2": _quiet(np.exp2),
    "lg2": _quiet(np.log2),
    "sqrt": _quiet(np.sqrt),
    "rsqrt": _quiet(_inverse_root),
    "rcp": _quiet(_reciprocal64),
    "sin": _quiet(np.sin),
    "cos": _quiet(np.cos),
}


def _shift_left(a: Array, n: Array) -> Array:
    bits = 8 * a.itemsize
    moved = np.left_shift(a, np.minimum(n, bits - 1).astype(a.dtype))
    return np.asarray(np.where(n >= bits, a.dtype.type(0), moved))


def _shift_right(a: Array, n: Array) -> Array:
    """Of a signed type, by its sign; beyond the width, what is left of all bits."""
    bits = 8 * a.itemsize
    moved = np.right_shift(a, np.minimum(n, bits - 1).astype(a.dtype))
    return np.asarray(np.where((n >= bits) & (a.dtype.kind == "u"), a.dtype.type(0), moved))


def _integer_product(name: str, part: str, kind: str) -> ScalarOperation:
    bits = int(kind[1:])
    wide = f"{kind[0]}{2 * bits}" if bits < 64 else kind

    def product(a: Array, b: Array) -> Array:
        if part == "lo":
            return np.asarray(a * b)
        if bits == 64:  # of the upper half: in integers of any size
            high = [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
            return np.array([x & (1 << 64) - 1 for x in high], np.uint64).view(a.dtype)
        whole = a.astype(np.dtype(f"{'int' if kind[0] == 's' else 'uint'}{2 * bits}")) * b
        return whole if part == "wide" else (whole >> bits).astype(a.dtype)

    result = wide if part == "wide" else kind
    if name == "mul":
        return ScalarOperation((kind,), result, _quiet(product))
    return ScalarOperation(
        (kind, kind, result), result, _quiet(lambda a, b, c: np.asarray(product(a, b) + c))
    )


def _packed(name: str, kind: str) -> ScalarOperation:
    """Two values in one register."""

    def split(x: Array) -> Array:
        halves = x.view(f"u{x.itemsize // 2}").reshape(-1, 2)
        if kind == "bf16x2":
            return floats.from_bfloat16(halves)
        return halves.view(np.float32) if kind == "f32x2" else halves

    def compute(*values: Array) -> Array:
        single = ScalarOperation(("f32",), "f32", _FLOATS[name] if kind != "s16x2" else _INTEGERS[name])
        both = single.compute(*(split(np.ascontiguousarray(value)) for value in values))
        joined = floats.to_bfloat16(both) if kind == "bf16x2" else both
        return np.ascontiguousarray(joined).view(values[0].dtype).reshape(-1)

    return ScalarOperation((kind,), kind, compute)


def _fma_bfloat16(a: Array, b: Array, c: Array) -> Array:
    return floats.fma32(floats.from_bfloat16(a), floats.from_bfloat16(b), c)


def _setp(parts: tuple[str, ...]) -> ScalarOperation:
    test, kind = parts[1], parts[-1]
    if test in ("num", "nan"):
        return ScalarOperation((kind,), "pred", lambda a, b: (np.isnan(a) | np.isnan(b)) == (test == "nan"))
    compare = _COMPARE[_UNORDERED.get(test, test)]
    if not kind.startswith("f"):
        return ScalarOperation((kind,), "pred", compare)
    if test in _UNORDERED:
        return ScalarOperation((kind,), "pred", lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b))
    return ScalarOperation((kind,), "pred", lambda a, b: compare(a, b) & ~np.isnan(a) & ~np.isnan(b))


def _bits(name: str, kind: str) -> ScalarOperation:
    if name == "mov":
        return ScalarOperation((kind,), kind, lambda a: a)
    if name == "selp":
        return ScalarOperation((kind, kind, "pred"), kind, _select)
    if name == "popc":
        return ScalarOperation((kind,), "u32", lambda a: np.bitwise_count(a).astype(np.uint32))
    if name == "prmt":
        return ScalarOperation(("b32",), "b32", _permute_bytes)
    return ScalarOperation((kind, "u32", "u32"), kind, _extract_bits)


def _select(a: Array, b: Array, chosen: Array) -> Array:
    return np.where(chosen, a, b)


def _extract_bits(a: Array, start: Array, length: Array) -> Array:
    """bfe: `length` bits from `start`, extended by zeros or, of a signed type, by the sign of the field."""
    bits = 8 * a.itemsize
    wide = a.astype(np.int64) & ((1 << bits) - 1) if bits < 64 else a.astype(np.int64)
    taken = (wide >> start.astype(np.int64)) & ((np.int64(1) << length.astype(np.int64)) - 1)
    if a.dtype.kind == "i":
        sign = (taken >> np.maximum(length.astype(np.int64) - 1, 0)) & 1
        taken = np.where((sign == 1) & (length > 0), taken - (np.int64(1) << length.astype(np.int64)), taken)
    return taken.astype(a.dtype)


def _permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """prmt: each byte of the result is one of the eight of b:a, or its sign, by four bits of the selector."""
    source = np.stack([a, b], axis=1).view(np.uint8).reshape(len(a), 8)
    out = np.empty((len(a), 4), np.uint8)
    rows = np.arange(len(a))
    for byte in range(4):
        choice = (selector >> np.uint32(4 * byte)) & np.uint32(15)
        taken = source[rows, choice & 7]
        out[:, byte] = np.where(choice & 8, np.where(taken & 128, 255, 0), taken)
    return out.view(np.uint32).reshape(-1)


def _cvt(parts: tuple[str, ...]) -> ScalarOperation:
    to, source = [part for part in parts[1:] if part not in _ROUNDINGS][:2]
    if to.endswith("x2"):
        return ScalarOperation((source,), "b16" if to == "e4m3x2" else "b32", _pack(to, source))
    if "bf16" in (to, source):
        widen = floats.from_bfloat16 if source == "bf16" else lambda x: x.astype(np.float32)
        if to == "bf16":
            return ScalarOperation((source,), "bf16", _quiet(lambda x: floats.to_bfloat16(widen(x))))
        return ScalarOperation((source,), to, lambda x: widen(x).astype(to.replace("f", "float")))
    if to == "f16" and "rz" in parts:
        return ScalarOperation((source,), to, _half_toward_zero)
    if to[0] != "f" and source[0] == "f":
        return ScalarOperation((source,), to, _to_integer(to, "rz" in parts))
    name = to.replace("f", "float") if to[0] == "f" else f"{'int' if to[0] == 's' else 'uint'}{to[1:]}"
    return ScalarOperation((source,), to, _quiet(lambda x: x.astype(name)))


def _to_integer(to: str, chop: bool) -> Callable[[Array], Array]:
    """Saturates, and makes NaN zero."""
    limits = np.iinfo(np.dtype(f"{'int' if to[0] == 's' else 'uint'}{to[1:]}"))

    def convert(x: Array) -> Array:
        whole = np.where(np.isnan(x), 0, np.trunc(x) if chop else np.rint(x)).astype(np.float64)
        inside = np.clip(whole, limits.min, limits.max)
        top = whole >= float(limits.max)
        return np.where(top, limits.max, np.where(top, 0, inside).astype(limits.dtype)).astype(limits.dtype)

    return convert


def _half_toward_zero(x: Array) -> Array:
    with np.errstate(all="ignore"):
        near = x.astype(np.float16)
        beyond = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
        return np.where(beyond, np.nextafter(near, np.float16(0)), near)


def _pack(to: str, source: str) -> Callable[..., Array]:
    """Two values into one register; of two operands, the first one is the upper half."""

    def narrow(x: Array) -> Array:
        if to == "bf16x2":
            return floats.to_bfloat16(x)
        if to == "e4m3x2":
            return floats.to_e4m3(x.astype(np.float32))
        return x.astype(np.float16).view(np.uint16)

    def pack(*values: Array) -> Array:
        if source == "e4m3x2":
            pairs = floats.from_e4m3(np.ascontiguousarray(values[0]).view(np.uint8)).reshape(-1, 2)
        elif source == "f16x2":
            pairs = np.ascontiguousarray(values[0]).view(np.float16).reshape(-1, 2)
        else:
            pairs = np.stack([values[1], values[0]], axis=1)
        with np.errstate(all="ignore"):
            both = np.ascontiguousarray(narrow(pairs))
        return both.view(f"u{2 * both.itemsize}").reshape(-1)

    return pack
