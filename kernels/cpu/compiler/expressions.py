"""Expressions of kernels; see kernels.cpu.compiler.language."""

import ast
import builtins
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import language, types
from kernels.cpu.compiler.arithmetic import (
    FLOAT,
    FLOAT32,
    INT,
    CompileError,
    Value,
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
from kernels.cpu.compiler.record_values import RecordValue, is_record, locate, record_at, widen
from kernels.cpu.compiler.types import Signature, Type
from kernels.cpu.compiler.vectors import Mask, f32x8, f32x16, f64x8, i8x64, i16x32, i32x8, i32x16, i64x8


@dataclass(frozen=True)
class Callee:
    """A function of the same module, for certain values of its static parameters."""

    function: Any  # LLVM's
    parameters: list[Any]  # annotations of the others
    result: Any  # annotation


class Places(list[Any]):
    """A list: the places of its values on the stack."""


VECTORS: dict[Any, Type] = {
    f32x16: types.f32x16,
    i32x16: types.i32x16,
    f32x8: types.f32x8,
    i32x8: types.i32x8,
    f64x8: types.f64x8,
    i64x8: types.i64x8,
    i16x32: types.i16x32,
    i8x64: types.i8x64,
    Mask: types.mask16,
}
_SUFFIXES = {
    FLOAT: "f64",
    FLOAT32: "f32",
    types.f32x16.llvm: "v16f32",
    types.f32x8.llvm: "v8f32",
    types.f64x8.llvm: "v8f64",
}
"""Of LLVM's functions, by the type that they take."""

FunctionOf = Callable[[Any, tuple[Any, ...]], Callee]
"""The compiled function for a Python function and the values of its static parameters. It is compiled at the
first call."""


def _signature_for(intrinsic: language.Intrinsic[..., Any], arguments: list[Value]) -> Signature:
    """That whose vectors the arguments are; the last one where none fits, and the arguments are converted."""
    given = [None if is_constant(value) else type_of(value) for value in arguments]
    for signature in intrinsic.signatures[:-1]:
        wanted = [one.llvm for one in signature.arguments]
        if all(kind in (None, want) for kind, want in zip(given, wanted, strict=False) if is_vector(want)):
            return signature
    return intrinsic.signatures[-1]


class Expressions(ABC):
    """Evaluates expressions of one function, where its builder stands."""

    def __init__(self, builder: Any, names: dict[str, Any], function_of: FunctionOf) -> None:
        """names: globals of the function."""
        self.builder, self._names, self.function_of = builder, names, function_of
        self.variables: dict[str, Any] = {}  # name -> place on the stack
        self.records: dict[str, Any] = {}  # name -> type of the record whose address is there
        self.lists: dict[str, Places] = {}
        self.constants: dict[str, Any] = {}  # of unroll() and static parameters

    def evaluate(self, node: ast.expr) -> Value:
        """Raises CompileError."""
        match node:
            case ast.Constant(value=value) if is_constant(value):
                return value
            case ast.Name(id=name) if name in self.variables:
                value = self.builder.load(self.variables[name])
                return RecordValue(self.records[name], value) if name in self.records else value
            case ast.Name(id=name) if name in self.lists:
                return self.lists[name]
            case ast.Attribute(value=owner, attr=name) if not self._is_global(owner):
                return self.record(owner).load(self.builder, name)
            case ast.Name() | ast.Attribute():
                return self._global_number(node)
            case ast.Tuple(elts=elements):
                return tuple(self.evaluate(element) for element in elements)
            case ast.Subscript(value=values, slice=index):
                return self._part(self.evaluate(values), self.evaluate(index))
            case ast.List(elts=elements):
                return [self.evaluate(element) for element in elements]
            case ast.ListComp(elt=element, generators=[ast.comprehension(ifs=[]) as loop]):
                return [self._with(loop.target, value, element) for value in self.unrolled(loop.iter)]
            case ast.UnaryOp(op=operation, operand=operand):
                return unary(self.builder, type(operation), self.evaluate(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return binary(self.builder, type(operation), self.evaluate(left), self.evaluate(right))
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp(op=operation, values=values):
                return self._either(isinstance(operation, ast.Or), values)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self._choose(
                    self.condition(test), lambda: self.evaluate(body), lambda: self.evaluate(otherwise)
                )
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._call(self._global(function), self._arguments(arguments))
        raise CompileError(f"{type(node).__name__} is not in the language")

    def condition(self, node: ast.expr) -> Any:
        """A BOOL, or a Python bool."""
        return truth(self.builder, self.evaluate(node))

    def _arguments(self, nodes: list[ast.expr]) -> list[Value]:
        """The values of arguments, of which some may be tuples with a star."""
        values: list[Value] = []
        for node in nodes:
            match node:
                case ast.Starred(value=ast.Tuple(elts=elements)):
                    values += self._arguments(elements)
                case ast.Name() | ast.Attribute() if self._is_global(node):
                    values.append(self._global(node))  # of any type, for a static parameter
                case _:
                    values.append(self.evaluate(node))
        return values

    def unrolled(self, node: ast.expr) -> list[Any]:
        """The values of unroll()."""
        match node:
            case ast.Call(func=function, args=[argument]) if self._global(function) is language.unroll:
                pass
            case _:
                raise CompileError("a loop over these values needs unroll()")
        match argument:
            case ast.Call(func=ast.Name(id="range"), args=bounds):
                numbers = [self.evaluate(bound) for bound in bounds]
                if not all(isinstance(number, int) for number in numbers):
                    raise CompileError("unroll() needs constants")
                return list(range(*numbers))
            case _:
                return list(self._global(argument))

    def bind(self, target: ast.expr, value: Any) -> None:
        """A name, or a tuple of names, stands for constants from now on."""
        match target:
            case ast.Name(id=name):
                self.constants[name] = value
            case ast.Tuple(elts=targets):
                for one, part in zip(targets, value, strict=True):
                    self.bind(one, part)
            case _:
                raise CompileError("constants go to names")

    def _with(self, target: ast.expr, value: Any, node: ast.expr) -> Value:
        """An expression, where names stand for constants."""
        before = dict(self.constants)
        self.bind(target, value)
        result = self.evaluate(node)
        self.constants = before
        return result

    def record(self, node: ast.expr) -> RecordValue:
        """A record."""
        value = self.evaluate(node)
        if not isinstance(value, RecordValue):
            raise CompileError(f"{ast.unparse(node)} is no record")
        return value

    def _is_global(self, node: ast.expr) -> bool:
        """Whether an expression is a name outside the function, or an attribute of one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in self.variables and node.id not in self.lists

    def _global(self, node: ast.expr) -> Any:
        """What a name outside the function stands for."""
        if isinstance(node, ast.Attribute):
            return getattr(self._global(node.value), node.attr)
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.constants[node.id]
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        if isinstance(node, ast.Name) and hasattr(builtins, node.id):
            return getattr(builtins, node.id)
        if isinstance(node, ast.Name) and node.id in self.variables:
            raise CompileError(f"{node.id} is a value, which has neither methods nor attributes")
        raise CompileError(f"{ast.unparse(node)} is not known")

    def _global_number(self, node: ast.expr) -> Value:
        value = self._global(node)
        if not is_constant(value):
            raise CompileError(f"{ast.unparse(node)} is no number")
        return value

    def _part(self, values: Value, number: Value) -> Value:
        """One of a function's results, or of a list."""
        if not isinstance(values, tuple | list) or not isinstance(number, int) or number >= len(values):
            raise CompileError(f"there is no value {number}")
        return self.builder.load(values[number]) if isinstance(values, Places) else values[number]

    def _compare(self, node: ast.Compare) -> Value:
        """a < b < c: all are evaluated."""
        values = [self.evaluate(operand) for operand in (node.left, *node.comparators)]
        result: Value = True
        for operation, left, right in zip(node.ops, values, values[1:], strict=False):
            one = compare(self.builder, type(operation), left, right)
            result = one if result is True else binary(self.builder, ast.BitAnd, result, one)
        return result

    def _either(self, is_or: bool, nodes: list[ast.expr]) -> Value:
        """x or y, x and y: the second is evaluated where it is needed."""
        first = self.evaluate(nodes[0])
        if len(nodes) == 1:
            return first

        def rest() -> Value:
            return self._either(is_or, nodes[1:])

        yes = truth(self.builder, first)
        return self._choose(yes, lambda: first, rest) if is_or else self._choose(yes, rest, lambda: first)

    def _choose(self, test: Any, then: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
        """One of two values, of which only one is computed."""
        if isinstance(test, bool):
            return then() if test else otherwise()
        builder = self.builder
        blocks = [builder.append_basic_block() for _ in range(3)]
        builder.cbranch(test, *blocks[:2])
        values, ends = [], []
        for block, compute in zip(blocks, (then, otherwise), strict=False):
            builder.position_at_end(block)
            values.append(compute())
            ends.append(builder.block)
        kind = common(type_of(values[0]), type_of(values[1]))
        converted = []
        for value, end in zip(values, ends, strict=True):
            builder.position_at_end(end)
            converted.append(convert(builder, value, kind))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        phi = builder.phi(kind)
        for value, end in zip(converted, ends, strict=True):
            phi.add_incoming(value, end)
        return phi

    def _call(self, function: Any, arguments: list[Value]) -> Value:
        builder = self.builder
        if function in (min, max):
            return extreme(builder, "<" if function is min else ">", arguments)
        if function is abs:
            return self._absolute(arguments[0])
        if function is math.log:
            return self._in_c("log", FLOAT, arguments)
        if function in (int, float, language.float32):
            return self._converted(function, arguments[0])
        if function is len and isinstance(arguments[0], list):
            return len(arguments[0])
        if function in VECTORS:
            return convert(builder, arguments[0], VECTORS[function].llvm)
        if isinstance(function, language.Intrinsic):
            kind = _signature_for(function, arguments)
            given = self._given(arguments, [one.llvm for one in kind.arguments])
            result = function.write(builder, *given)
            return None if isinstance(kind.result.llvm, ir.VoidType) else widen(builder, result, kind.result)
        if isinstance(function, language.External):
            kind = function.signature
            result = self._in_c(function.name, kind.result.llvm, arguments, [a.llvm for a in kind.arguments])
            return widen(builder, result, kind.result)
        located = record_at(function)
        if located is not None:
            return locate(builder, located, arguments[0], arguments[1] if len(arguments) > 1 else 0)
        return self.call_kernel(function, arguments)

    @abstractmethod
    def call_kernel(self, python: Any, arguments: list[Value]) -> Value:
        """Calls a function that is compiled along, or compiles it here."""

    def call_compiled(self, callee: Callee, arguments: list[Value]) -> Value:
        """Calls a function that is compiled along."""
        kind, wanted = callee.function.function_type, callee.parameters + [None] * len(arguments)
        plain = [self._address_of(one, of_it) for one, of_it in zip(arguments, wanted, strict=False)]
        result = self.builder.call(callee.function, self._given(plain, kind.args))
        if isinstance(kind.return_type, ir.LiteralStructType):
            return tuple(self.builder.extract_value(result, i) for i in range(len(kind.return_type.elements)))
        if is_record(callee.result):
            return RecordValue(callee.result, result)
        return None if isinstance(kind.return_type, ir.VoidType) else result

    def _address_of(self, argument: Value, wanted: Any) -> Value:
        """An argument as it is passed: of a record its address."""
        if not is_record(wanted):
            return argument
        if not isinstance(argument, RecordValue) or not issubclass(argument.kind, wanted):
            raise CompileError(f"an argument must be a {wanted.__name__}")
        return argument.address

    def _given(self, arguments: list[Value], kinds: Any) -> list[Any]:
        if len(arguments) != len(kinds):
            raise CompileError(f"{len(kinds)} arguments are needed, not {len(arguments)}")
        return [convert(self.builder, one, kind) for one, kind in zip(arguments, kinds, strict=True)]

    def _in_c(self, name: str, result: Any, arguments: list[Value], kinds: list[Any] | None = None) -> Value:
        kinds = kinds or [FLOAT] * len(arguments)
        module = self.builder.module
        callee = module.globals.get(name) or ir.Function(module, ir.FunctionType(result, kinds), name)
        return self.builder.call(callee, self._given(arguments, kinds))

    def _absolute(self, value: Value) -> Value:
        if is_constant(value):
            return abs(value)
        kind = type_of(value)
        if is_float(kind):
            name = f"llvm.fabs.{_SUFFIXES[kind]}"
            return self._in_c(name, kind, [value], [kind])
        return extreme(self.builder, ">", [value, unary(self.builder, ast.USub, value)])

    def _converted(self, function: Any, value: Value) -> Value:
        """int(), of a bool; float(); float32()."""
        if function is not language.float32 and is_constant(value):
            return function(value)
        kinds: dict[Any, Any] = {int: INT, float: FLOAT, language.float32: FLOAT32}
        return convert(self.builder, value, kinds[function])
