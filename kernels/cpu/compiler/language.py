"""The language of kernels: a small part of Python, which kernels.cpu.compiler.lowering turns into LLVM code.

    int       64 bits, wraps around. // and % round down, as Python's do; a divisor is never 0
    float     float64. What intrinsics read as float32 stays that, and so do sums and products of such; with
              any other number it becomes float64
    bool

A function has annotated parameters and results: these types, and tuples of them as results. In it: names,
tuples of names, +=, if, while, for over range() (by a negative constant, or upwards), break, continue,
return, min, max, abs, log, intrinsics, and calls of other such functions, which are compiled along; f(x)[0]
is one of their results. A name has one type, that of what is assigned to it first. Constants come from the
module.

Python itself runs the same functions, so that it is their reference in tests; only integers do not wrap
around there, and it knows no intrinsics.
"""

from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass
from typing import Any, cast

from kernels.cpu.compiler.types import Signature


def float32(value: float) -> float:
    """Rounded to float32."""
    return c_float(value).value


@dataclass(frozen=True)
class Intrinsic:
    """A function whose LLVM code stands wherever a kernel calls it."""

    signature: Signature
    write: Callable[..., Any]
    """(builder, x, y, ...), values of LLVM: writes the code, and returns LLVM's value or None."""


@dataclass(frozen=True)
class External:
    """A function of the C library."""

    name: str
    signature: Signature


def intrinsic(signature: Signature) -> Callable[[Callable[..., Any]], Any]:
    """Decorates what writes the code of an intrinsic. Kernels call it without the builder."""
    return lambda write: Intrinsic(signature, write)


def external(name: str, signature: Signature) -> Any:
    """A function of the C library, for kernels to call."""
    return cast(Any, External(name, signature))
