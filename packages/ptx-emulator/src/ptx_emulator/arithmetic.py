"""Instructions of one thread that touch no memory: integers, floats, comparisons, conversions, bits.

`find(parts)` gives what an opcode computes: the PTX types of its operands and of its result, and a function
of numpy arrays. Approximate operations (ex2, rsqrt, div.full) give numpy's rounding of the exact result; what
a GPU gives differs in the last bits.
"""

import re
from collections.abc import Callable
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx_emulator import floats
from ptx_emulator.parser import PtxError
from ptx_emulator.threads import DTYPES

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
_MODIFIERS = frozenset(("rn", "ftz", "approx", "full"))
"""Those of floating point that are known: all but `ftz` say what is done here anyway."""
_WHOLE: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_CONVERTED = re.compile(r"[subf](8|16|32|64)|bf16|(bf16|f16|e4m3)x2")


class ScalarOperation(NamedTuple):
    """What an opcode computes."""

    sources: tuple[str, ...]  # PTX types of the operands; the last one repeats where there are more
    result: str  # PTX type
    compute: Callable[..., Array]


@cache
def find(parts: tuple[str, ...]) -> ScalarOperation:
    """parts: the opcode's, as ("add", "s32"). Raises PtxError for what is not known, modifiers too."""
    found = _find(parts[0], parts[1:-1], parts[-1])
    if found is None:
        raise PtxError(f"the emulator does not know {'.'.join(parts)}")
    return found


def _find(name: str, modifiers: tuple[str, ...], kind: str) -> ScalarOperation | None:
    if name == "cvt":
        return _cvt(modifiers, kind)
    if name == "setp":
        return _setp(modifiers[0], kind) if len(modifiers) == 1 else None
    if name in ("mul", "mad") and modifiers in (("lo",), ("hi",), ("wide",)):
        return _integer_product(name, modifiers[0], kind)
    if modifiers == ("rn", "f32") and kind in ("bf16", "f16"):
        return _mixed(name, kind)
    if kind in ("f32x2", "bf16x2", "s16x2"):
        return _packed(name, kind) if set(modifiers) <= {"rn"} else None
    if kind in ("f16", "f32", "f64") and name in _FLOATS:
        return _of_floats(name, modifiers, kind)
    if modifiers == ("relu",) and name in ("max", "min") and kind == "s32":
        return ScalarOperation((kind,), kind, lambda a, b: np.maximum(_INTEGERS[name](a, b), 0))
    if modifiers or kind not in DTYPES:
        return None
    if name in _INTEGERS and kind[0] in "su":
        return ScalarOperation((kind,), kind, _INTEGERS[name])
    return _bits(name, kind)


def _of_floats(name: str, modifiers: tuple[str, ...], kind: str) -> ScalarOperation | None:
    compute = {"fma": floats.fma64}.get(name, _FLOATS[name]) if kind == "f64" else _FLOATS[name]
    if name in ("max", "min") and "NaN" in modifiers:
        compute, modifiers = _keeps_nan(compute), tuple(each for each in modifiers if each != "NaN")
    if not set(modifiers) <= _MODIFIERS or (name == "fma" and kind == "f16"):
        return None
    return ScalarOperation(
        (kind,), kind, _flushed(compute) if "ftz" in modifiers and kind == "f32" else compute
    )


def _flushed(compute: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: floats.flush(np.asarray(compute(*map(floats.flush, values))))


def _quiet(compute: Callable[..., Array]) -> Callable[..., Array]:
    def run(*values: Array) -> Array:
        with np.errstate(all="ignore"):
            return compute(*values)

    return run


def _keeps_nan(compute: Callable[..., Array]) -> Callable[..., Array]:
    def run(*values: Array) -> Array:
        return np.where(np.logical_or.reduce([np.isnan(each) for each in values]), np.nan, compute(*values))

    return run


def _larger(a: Array, b: Array) -> Array:
    """Returns the larger one: of two zeros the positive one, of a number and NaN the number."""
    bits = f"u{a.itemsize}"
    return np.where(a == b, (a.view(bits) & b.view(bits)).view(a.dtype), np.fmax(a, b))


def _maximum(*values: Array) -> Array:
    return reduce(_larger, values)


def _minimum(*values: Array) -> Array:
    return -reduce(_larger, (-each for each in values))


def _integer_quotient(a: Array, b: Array) -> Array:
    """Toward zero; all ones where the divisor is zero."""
    divisor = np.where(b == 0, 1, b).astype(a.dtype)
    with np.errstate(over="ignore"):  # of the least integer by -1
        floor = a // divisor
        quotient = floor + ((floor < 0) & (floor * divisor != a)).astype(a.dtype)
    return np.asarray(np.where(b == 0, np.invert(np.zeros_like(a)), quotient))


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
    """Shifts a signed type by its sign; beyond the width, what is left of all bits."""
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


def _packed(name: str, kind: str) -> ScalarOperation | None:
    """Two values in one register."""
    single = (_INTEGERS if kind == "s16x2" else _FLOATS).get(name)
    if single is None:
        return None

    def split(x: Array) -> Array:
        halves = x.view(f"u{x.itemsize // 2}").reshape(-1, 2)
        if kind == "bf16x2":
            return floats.from_bfloat16(halves)
        return halves.view(np.float32 if kind == "f32x2" else np.int16)

    def compute(*values: Array) -> Array:
        both = single(*(split(np.ascontiguousarray(value)) for value in values))
        joined = floats.to_bfloat16(both) if kind == "bf16x2" else both
        return np.ascontiguousarray(joined).view(values[0].dtype).reshape(-1)

    return ScalarOperation((kind,), kind, compute)


def _mixed(name: str, kind: str) -> ScalarOperation | None:
    """add, sub and fma whose last operand and result are float32, and the others of 16 bits."""
    if name not in ("add", "sub", "fma"):
        return None

    def widen(x: Array) -> Array:
        return floats.from_bfloat16(x) if kind == "bf16" else x.astype(np.float32)

    def compute(*values: Array) -> Array:
        return _FLOATS[name](*map(widen, values[:-1]), values[-1])

    return ScalarOperation((kind,) * (2 if name == "fma" else 1) + ("f32",), "f32", compute)


def _setp(test: str, kind: str) -> ScalarOperation | None:
    if test in ("num", "nan"):
        return ScalarOperation((kind,), "pred", lambda a, b: (np.isnan(a) | np.isnan(b)) == (test == "nan"))
    compare = _COMPARE.get(_UNORDERED.get(test, test))
    if compare is None or kind == "bf16":
        return None
    if not kind.startswith("f"):
        return ScalarOperation((kind,), "pred", compare)
    if test in _UNORDERED:
        return ScalarOperation((kind,), "pred", lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b))
    return ScalarOperation((kind,), "pred", lambda a, b: compare(a, b) & ~np.isnan(a) & ~np.isnan(b))


def _bits(name: str, kind: str) -> ScalarOperation | None:
    if name in _LOGIC:
        return ScalarOperation((kind,), kind, _LOGIC[name])
    match name, kind:
        case "shl", _:
            return ScalarOperation((kind, "u32"), kind, _shift_left)
        case "shr", _:
            return ScalarOperation((kind, "u32"), kind, _shift_right)
        case "not", _:
            return ScalarOperation((kind,), kind, np.invert)
        case "mov", _:
            return ScalarOperation((kind,), kind, lambda a: a)
        case "selp", _:
            return ScalarOperation((kind, kind, "pred"), kind, _select)
        case "popc", _:
            return ScalarOperation((kind,), "u32", lambda a: np.bitwise_count(a).astype(np.uint32))
        case "prmt", "b32":
            return ScalarOperation(("b32",), "b32", _permute_bytes)
        case "bfe", "u32" | "s32" | "u64" | "s64":
            return ScalarOperation((kind, "u32", "u32"), kind, _extract_bits)
    return None


def _select(a: Array, b: Array, chosen: Array) -> Array:
    return np.where(chosen, a, b)


def _extract_bits(a: Array, start: Array, length: Array) -> Array:
    """bfe: `length` bits from `start`, extended by zeros or, of a signed type, by the sign of the field; its
    part beyond the register is that sign, too. Start and length are 8 bits."""
    bits = 8 * a.itemsize
    start, length = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
    above = np.maximum(bits - start - length, 0)  # bits beyond the field, which are shifted out at the top
    moved = _shift_right(_shift_left(a, above), above + np.minimum(start, bits))
    return np.asarray(np.where(length == 0, a.dtype.type(0), moved))


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


def _cvt(modifiers: tuple[str, ...], source: str) -> ScalarOperation | None:
    to, rounding = (modifiers or ("",))[-1], frozenset(modifiers[:-1])
    if not (_CONVERTED.fullmatch(to) and _CONVERTED.fullmatch(source)):
        return None
    if to.endswith("x2"):
        known = {"rn", "satfinite"} if to == "e4m3x2" else {"rn"}
        return (
            ScalarOperation((source,), "b16" if to == "e4m3x2" else "b32", _pack(to, source))
            if rounding <= known
            else None
        )
    if to[0] != "f" and source[0] == "f" and to != "bf16":
        whole = [_WHOLE[each] for each in rounding if each in _WHOLE]
        return (
            ScalarOperation((source,), to, _to_integer(to, whole[0]))
            if len(rounding) == len(whole) == 1
            else None
        )
    if rounding <= {"rn"}:
        return ScalarOperation((source,), to, _between(to, source))
    if rounding == {"rz"} and (to, source) == ("f16", "f32"):
        return ScalarOperation((source,), to, _half_toward_zero)
    [one] = rounding if len(rounding) == 1 else [""]
    if one in _WHOLE and to == source and to != "bf16":
        return ScalarOperation((source,), to, _WHOLE[one])
    return None


def _between(to: str, source: str) -> Callable[[Array], Array]:
    """Integers wrap to the width; floating point rounds to nearest."""
    widen = floats.from_bfloat16 if source == "bf16" else lambda x: x
    if to == "bf16":
        return _quiet(lambda x: floats.to_bfloat16(widen(x).astype(np.float32)))
    return _quiet(lambda x: widen(x).astype(DTYPES[to]))


def _to_integer(to: str, whole: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Saturates, and makes NaN zero."""
    limits = np.iinfo(DTYPES[to])

    def convert(x: Array) -> Array:
        exact = whole(np.where(np.isnan(x), 0, x)).astype(np.float64)
        top = exact >= float(limits.max)  # also where float64 has no number that is the largest
        inside = np.maximum(np.where(top, 0, exact), limits.min).astype(limits.dtype)
        return np.where(top, limits.max, inside).astype(limits.dtype)

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
