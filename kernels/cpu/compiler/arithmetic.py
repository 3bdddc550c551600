"""Numbers in kernels: what Python's operators are in LLVM.

A value is one of LLVM, or a Python number where it is known while compiling.
"""

import ast
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

BOOL, INT = ir.IntType(1), ir.IntType(64)
FLOAT, FLOAT32 = ir.DoubleType(), ir.FloatType()

Value = Any

_PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_INTEGERS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.LShift: "shl",
    ast.RShift: "ashr",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}


class CompileError(Exception):
    """What is written there is not in the language, or does not fit."""

    place = ""
    """File and line."""

    def __str__(self) -> str:
        return f"{self.place}: {super().__str__()}"


def is_constant(value: Value) -> bool:
    """Whether it is known while compiling."""
    return isinstance(value, bool | int | float)


def type_of(value: Value) -> Any:
    """BOOL, INT, FLOAT or FLOAT32. Raises CompileError."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return INT
    if isinstance(value, float):
        return FLOAT
    if not isinstance(value, ir.Value):
        raise CompileError("a number is needed here")
    return value.type


def is_vector(kind: Any) -> bool:
    """Whether values of this type are vectors, or masks."""
    return isinstance(kind, ir.VectorType)


def is_float(kind: Any) -> bool:
    """Whether a number of this type, or each lane, is a float."""
    return (kind.element if is_vector(kind) else kind) in (FLOAT, FLOAT32)


def common(left: Any, right: Any) -> Any:
    """The type that values of these two become together: a number stands for all lanes of a vector."""
    if left == right:
        return left
    if is_vector(left) or is_vector(right):
        if is_vector(left) and is_vector(right):
            raise CompileError(f"vectors of two types, {left} and {right}")
        return left if is_vector(left) else right
    return FLOAT if any(kind in (FLOAT, FLOAT32) for kind in (left, right)) else INT


def convert(builder: Any, value: Value, kind: Any, signed: bool = True) -> Any:
    """The value as LLVM's, of that type; integers that do not fit lose their upper bits. signed: how an
    integer narrower than INT is widened."""
    if is_vector(kind):
        return _in_all_lanes(builder, value, kind)
    if is_constant(value):
        if kind in (FLOAT, FLOAT32):
            return ir.Constant(kind, float(value))
        if isinstance(value, float):
            raise CompileError("a float does not become an integer by itself")
        return ir.Constant(kind, int(value) & ((1 << kind.width) - 1))
    source = type_of(value)
    if source == kind:
        return value
    if is_vector(source):
        raise CompileError("a number is needed here, and not a vector")
    if source in (FLOAT, FLOAT32):
        if kind not in (FLOAT, FLOAT32):
            raise CompileError("a float does not become an integer by itself")
        return builder.fpext(value, kind) if kind == FLOAT else builder.fptrunc(value, kind)
    signed = signed and source != BOOL
    if kind in (FLOAT, FLOAT32):
        return builder.sitofp(value, kind) if signed else builder.uitofp(value, kind)
    if kind == BOOL:
        return truth(builder, value)
    if source.width > kind.width:
        return builder.trunc(value, kind)
    return builder.sext(value, kind) if signed else builder.zext(value, kind)


@cache
def _constant_lanes(kind: Any, lane: float, name: str) -> Any:
    """One constant, whose text LLVM's is made of once. name: tells 0.0 from -0.0."""
    return ir.Constant(kind, [lane] * kind.count)


def _in_all_lanes(builder: Any, value: Value, kind: Any) -> Any:
    """A vector: as it is, or a number in all lanes."""
    if is_constant(value):
        lane = float(value) if is_float(kind) else int(value) & ((1 << kind.element.width) - 1)
        return _constant_lanes(kind, lane, repr(lane))
    if type_of(value) == kind:
        return value
    if is_vector(type_of(value)):
        raise CompileError(f"a vector {type_of(value)} does not become {kind} by itself")
    index, nothing = ir.IntType(32), ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, convert(builder, value, kind.element), ir.Constant(index, 0))
    first = ir.Constant(ir.VectorType(index, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, nothing, first)


def truth(builder: Any, value: Value) -> Any:
    """A BOOL: whether it is not 0. A Python bool of a constant."""
    if is_constant(value):
        return bool(value)
    kind = type_of(value)
    if kind == BOOL:
        return value
    if is_vector(kind):
        raise CompileError("a vector is neither true nor false")
    zero = ir.Constant(kind, 0)
    if kind in (FLOAT, FLOAT32):
        return builder.fcmp_unordered("!=", value, zero)
    return builder.icmp_signed("!=", value, zero)


def unary(builder: Any, operation: type[ast.unaryop], value: Value) -> Value:
    """-x, ~x, not x."""
    if operation is ast.Not:
        yes = truth(builder, value)
        return (not yes) if isinstance(yes, bool) else builder.not_(yes)
    if is_constant(value):
        return _PYTHON[operation](value)
    kind = type_of(value)
    if is_float(kind) and operation is ast.USub:
        return builder.fneg(value)
    if not is_vector(kind):
        value = convert(builder, value, INT)
    if operation is ast.USub:
        return builder.neg(value)
    if operation is ast.Invert:
        return builder.not_(value)
    raise CompileError(f"no {operation.__name__} of this type")


def binary(builder: Any, operation: type[ast.operator], left: Value, right: Value) -> Value:
    """x + y and the like."""
    if is_constant(left) and is_constant(right):
        return _PYTHON[operation](left, right)
    kind = common(type_of(left), type_of(right))
    if kind == BOOL and operation not in (ast.BitAnd, ast.BitOr, ast.BitXor):
        kind = INT
    if operation is ast.Div and kind == INT:
        kind = FLOAT
    names = _FLOATS if is_float(kind) else _INTEGERS
    if operation in names:
        return getattr(builder, names[operation])(convert(builder, left, kind), convert(builder, right, kind))
    if kind == INT and operation in (ast.FloorDiv, ast.Mod):
        return _divide(builder, operation is ast.Mod, convert(builder, left, INT), right)
    raise CompileError(
        f"there is no {operation.__name__} of {type_of(left)} and {type_of(right)} in a kernel"
    )


def _divide(builder: Any, modulo: bool, left: Any, right: Value) -> Any:
    """Rounded down, which LLVM's division is only where the signs are the same."""
    if is_constant(right) and right > 0 and right & (right - 1) == 0:
        if modulo:
            return builder.and_(left, ir.Constant(INT, right - 1))
        return builder.ashr(left, ir.Constant(INT, right.bit_length() - 1))
    right = convert(builder, right, INT)
    rest = builder.srem(left, right)
    zero = ir.Constant(INT, 0)
    differ = builder.icmp_signed("<", builder.xor(rest, right), zero)
    inexact = builder.and_(differ, builder.icmp_signed("!=", rest, zero))
    if modulo:
        return builder.select(inexact, builder.add(rest, right), rest)
    return builder.sub(builder.sdiv(left, right), builder.zext(inexact, INT))


def compare(builder: Any, operation: type[ast.cmpop], left: Value, right: Value) -> Value:
    """x < y and the like. A NaN is unequal to everything, and neither above nor below."""
    if operation not in _COMPARISONS:
        raise CompileError("only ==, !=, <, <=, > and >= compare")
    sign, python = _COMPARISONS[operation]
    if is_constant(left) and is_constant(right):
        return python(left, right)
    kind = common(type_of(left), type_of(right))
    left, right = convert(builder, left, kind), convert(builder, right, kind)
    if not is_float(kind):
        return (builder.icmp_unsigned if kind == BOOL else builder.icmp_signed)(sign, left, right)
    return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, left, right)


def extreme(builder: Any, sign: str, values: list[Value]) -> Value:
    """min and max: the first, unless a later one is below or above it."""
    if all(is_constant(value) for value in values):
        return min(values) if sign == "<" else max(values)
    best = values[0]
    for value in values[1:]:
        kind = common(type_of(best), type_of(value))
        best, value = convert(builder, best, kind), convert(builder, value, kind)
        ordered = builder.fcmp_ordered if kind in (FLOAT, FLOAT32) else builder.icmp_signed
        best = builder.select(ordered(sign, value, best), value, best)
    return best
