"""Operators of numbers in kernels: what is known while compiling is computed by Python, the rest is code that
gives what Python gives; and what is no operation of two types is refused."""

import ast
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llvmlite")
from llvmlite import ir

from kernels.cpu.compiler.arithmetic import (
    BOOL,
    FLOAT,
    FLOAT32,
    INT,
    CompileError,
    binary,
    common,
    compare,
    convert,
    extreme,
    is_constant,
    is_float,
    is_vector,
    truth,
    type_of,
    unary,
)
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import float32
from kernels.cpu.compiler.types import f32x16, i32x16, mask16

VECTOR, INTEGERS, MASK = f32x16.llvm, i32x16.llvm, mask16.llvm


class Code:
    """A function with parameters of these types, to which a test adds code."""

    def __init__(self, *kinds: Any) -> None:
        function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), "f")
        self.builder, self.values = ir.IRBuilder(function.append_basic_block()), function.args

    @property
    def instructions(self) -> int:
        return len(self.builder.block.instructions)

    @property
    def text(self) -> str:
        return str(self.builder.block)


NUMBERS = [0, 1, -1, 7, -7, 16, 2.5, -0.5, True, False]
OPERATIONS = [ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_constants_are_computed_while_compiling(operation: type[ast.operator]):
    """By Python, of the types that Python gives them; there is no code."""
    for left, right in itertools.product(NUMBERS, NUMBERS):
        if right == 0 and operation in (ast.FloorDiv, ast.Mod):
            continue
        code = Code()
        tree = ast.Expression(ast.BinOp(ast.Constant(left), operation(), ast.Constant(right)))
        expected = eval(compile(ast.fix_missing_locations(tree), "test", "eval"))
        found = binary(code.builder, operation, left, right)
        assert found == expected and type(found) is type(expected) and not code.instructions
    assert unary(Code().builder, ast.USub, 3) == -3 and unary(Code().builder, ast.Invert, 3) == -4
    assert unary(Code().builder, ast.Not, 0.0) is True


def test_constants_are_compared_while_compiling():
    signs = {ast.Lt: 1 < 2, ast.LtE: 1 <= 2, ast.Gt: 1 > 2, ast.GtE: 1 >= 2, ast.Eq: False, ast.NotEq: True}
    for operation, expected in signs.items():
        assert compare(None, operation, 1, 2) is expected
    assert compare(None, ast.Lt, 1.0, math.nan) is False and compare(None, ast.NotEq, math.nan, 1) is True
    assert extreme(None, "<", [3, 1, 2]) == 1 and extreme(None, ">", [3, 1.5, 2]) == 3


@pytest.mark.parametrize(
    ("left", "right", "together"),
    [
        (INT, INT, INT),
        (BOOL, INT, INT),
        (BOOL, BOOL, BOOL),
        (INT, FLOAT, FLOAT),
        (FLOAT32, FLOAT32, FLOAT32),
        (FLOAT32, FLOAT, FLOAT),
        (FLOAT32, INT, FLOAT),
        (VECTOR, FLOAT, VECTOR),
        (INT, INTEGERS, INTEGERS),
        (MASK, MASK, MASK),
    ],
)
def test_the_type_of_two_together(left: Any, right: Any, together: Any):
    """Narrow floats stay narrow among themselves only; a number becomes a vector's lanes."""
    assert common(left, right) == common(right, left) == together
    assert is_vector(together) == (together in (VECTOR, INTEGERS, MASK))
    assert is_float(together) == (together in (FLOAT, FLOAT32, VECTOR))


def test_types_of_values():
    assert [type_of(value) for value in (True, 3, 2.5)] == [BOOL, INT, FLOAT]
    assert all(map(is_constant, (True, 3, 2.5))) and not is_constant("3") and not is_constant(None)
    with pytest.raises(CompileError, match="a number is needed here"):
        type_of("3")


REFUSED: dict[str, tuple[str, Callable[[Code], Any], tuple[Any, ...]]] = {
    "vectors of two types": ("vectors of two types", lambda c: common(VECTOR, INTEGERS), ()),
    "a float as an integer": (
        "a float does not become an integer",
        lambda c: convert(c.builder, c.values[0], INT),
        (FLOAT,),
    ),
    "a constant float as an integer": (
        "a float does not become an integer",
        lambda c: convert(c.builder, 2.0, INT),
        (),
    ),
    "a vector as a number": (
        "a number is needed here, and not a vector",
        lambda c: convert(c.builder, c.values[0], FLOAT),
        (VECTOR,),
    ),
    "a vector as another": (
        "a vector <16 x float> does not become <16 x i32>",
        lambda c: convert(c.builder, c.values[0], INTEGERS),
        (VECTOR,),
    ),
    "a vector for truth": (
        "a vector is neither true nor false",
        lambda c: truth(c.builder, c.values[0]),
        (VECTOR,),
    ),
    "bits of a float": (
        "no Invert of this type|a float does not become an integer",
        lambda c: unary(c.builder, ast.Invert, c.values[0]),
        (FLOAT,),
    ),
    "a shift of a float": (
        "there is no LShift of double and i64",
        lambda c: binary(c.builder, ast.LShift, c.values[0], 1),
        (FLOAT,),
    ),
    "a rest of floats": (
        "there is no Mod of double and double",
        lambda c: binary(c.builder, ast.Mod, c.values[0], 1.0),
        (FLOAT,),
    ),
    "a quotient of vectors of integers": (
        "there is no Div of",
        lambda c: binary(c.builder, ast.Div, c.values[0], c.values[0]),
        (INTEGERS,),
    ),
    "what is the same": (
        "only ==, !=, <, <=, > and >= compare",
        lambda c: compare(c.builder, ast.Is, c.values[0], 1),
        (INT,),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_operation(name: str):
    why, write, kinds = REFUSED[name]
    with pytest.raises(CompileError, match=why):
        write(Code(*kinds))


def test_integers_that_do_not_fit_lose_their_upper_bits():
    byte, code = ir.IntType(8), Code(INT)
    assert convert(code.builder, 0x1FF, byte).constant == 0xFF
    assert convert(code.builder, -1, byte).constant == 0xFF
    assert convert(code.builder, True, INT).constant == 1
    convert(code.builder, code.values[0], byte)
    assert "trunc i64" in code.text


@pytest.mark.parametrize(("signed", "word"), [(True, "sext i8"), (False, "zext i8")])
def test_narrow_integers_are_widened_with_or_without_their_sign(signed: bool, word: str):
    code = Code(ir.IntType(8))
    convert(code.builder, code.values[0], INT, signed)
    assert word in code.text


def test_a_bool_is_one_and_not_minus_one():
    code = Code(BOOL)
    convert(code.builder, code.values[0], INT)
    convert(code.builder, code.values[0], FLOAT)
    assert "zext i1" in code.text and "uitofp i1" in code.text


def test_zeros_of_both_signs_in_all_lanes():
    """A constant is made once for each of them."""
    zeros = [convert(None, zero, VECTOR) for zero in (0.0, -0.0, 0.0)]
    assert str(zeros[0]) == str(zeros[2]) != str(zeros[1]) and zeros[0] is zeros[2]


def everything(x: int, y: int, a: float, b: float) -> float:
    """Mixed types: bools among numbers, narrow and wide floats, all comparisons, divisions by constants."""
    total = (x // 8) + 2 * (x % 8) + (x // -8) * 3 + x % -8 + x // 7 + x % 7 + x // y + x % y + x / y
    total += (x < y) + (x <= y) * 2 + (x > y) * 4 + (x >= y) * 8 + (x == y) * 16 + (x != y) * 32
    total += (
        (a < b) * 64 + (a <= b) * 128 + (a > b) * 256 + (a >= b) * 512 + (a == b) * 1024 + (a != b) * 2048
    )
    flag = (x < y) ^ (a < b)
    total += int(flag & (x != 3) | (not flag)) * 4096
    total += min(x, a, y) - max(b, x) + -a - abs(b) + float32(float32(a) * float32(b)) + float32(a) * b
    return total + (x if a else y) + (a if x else b)


def test_mixed_types():
    """Signs of both sides, zeros, equals, and NaN."""
    machine = compiled(everything)
    integers, floats = (-17, -8, -1, 0, 3, 8, 1000), (-2.75, -0.0, 0.0, 0.1, 1e10, math.nan)
    for x, y, a, b in itertools.product(integers, (-16, -3, 1, 5), floats, floats):
        found, expected = machine(x, y, a, b), everything(x, y, a, b)
        assert found == expected or math.isnan(found) and math.isnan(expected), (x, y, a, b)
