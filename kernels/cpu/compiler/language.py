"""The language of kernels: a small part of Python, which kernels.cpu.compiler.lowering turns into LLVM code.

    int       64 bits, wraps around. // and % round down, as Python's do; a divisor is never 0
    float     float64. What intrinsics read as float32 stays that, and so do sums and products of such; with
              any other number it becomes float64
    bool
    records   kernels.cpu.compiler.records: their fields are read and assigned
    vectors   kernels.cpu.compiler.vectors, with operators; other operations are in kernels.cpu.isa.simd
    lists     of a constant number of values, kept in registers: [f(v) for v in unroll(range(3))], x[2]

A function has annotated parameters and results: these types, and tuples of them as results; a function that
takes or gives lists is compiled where it is called, and may return at its end only. In it: names, tuples of
names, +=, if, while, for over range() (by a negative constant, or upwards) or unroll(), break, continue,
return, min, max, abs, log, intrinsics, and calls of other such functions, which are compiled along; f(x)[0]
is one of their results. A name has one type, that of what is assigned to it first. Constants come from the
module, from unroll(), and from Static parameters; an if statement whose condition is a constant compiles
one branch.

Python itself runs the same functions, so that it is their reference in tests; only integers do not wrap
around there.
"""

from collections.abc import Callable, Iterable
from ctypes import c_float
from dataclasses import dataclass
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, cast

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.types import Signature

P = ParamSpec("P")
T = TypeVar("T")

STATIC = "static"
Static = Annotated[T, STATIC]
"""A parameter that is known while compiling: the function is compiled for each of its values."""


def unroll(values: Iterable[T]) -> Iterable[T]:
    """In a for loop or a list comprehension: the body is compiled for each value, which is a constant in it.
    values: range() of constants, or a tuple."""
    return values


def float32(value: float) -> float:
    """Rounded to float32."""
    return c_float(value).value


@dataclass(frozen=True)
class Intrinsic(Generic[P, T]):
    """A function whose LLVM code stands wherever a kernel calls it. Python calls its reference."""

    signatures: tuple[Signature, ...]
    """One, or one for each type of vectors that it takes."""
    write: Callable[..., Any]
    """(builder, x, y, ...), values of LLVM: writes the code, and returns LLVM's value or None."""
    reference: Callable[P, T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        assert self.reference is not None, "this intrinsic has no reference"
        return self.reference(*args, **kwargs)


def lowered_by(
    write: Callable[..., Any], *signatures: Signature
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates the reference of an intrinsic. write, signatures: see Intrinsic."""
    return lambda reference: Intrinsic(signatures, write, reference)


@dataclass(frozen=True)
class External:
    """A function of the C library."""

    name: str
    signature: Signature


def intrinsic(signature: Signature) -> Callable[[Callable[..., Any]], Any]:
    """Decorates what writes the code of an intrinsic. Kernels call it without the builder."""
    return lambda write: Intrinsic((signature,), write)


def external(name: str, signature: Signature) -> Any:
    """A function of the C library, for kernels to call."""
    return cast(Any, External(name, signature))


def _unlikely(builder: Any, condition: Any) -> Any:
    bit = ir.IntType(1)
    name, kind = "llvm.expect.i1", ir.FunctionType(bit, [bit, bit])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [condition, ir.Constant(bit, 0)])


@lowered_by(_unlikely, types.boolean(types.boolean))
def unlikely(condition: bool) -> bool:
    """The same, which is seldom true: `if unlikely(...)`."""
    return condition
