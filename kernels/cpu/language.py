"""The language of kernels: a small part of Python, which kernels.cpu.lowering turns into LLVM code.

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
from inspect import signature
from typing import Any, cast

from kernels.cpu.types import Signature

Generate = Callable[[Any, Any, Signature, Any], Any]
"""(context, builder, signature, arguments): writes LLVM code and returns its value."""


def float32(value: float) -> float:
    """Rounded to float32."""
    return c_float(value).value


@dataclass(frozen=True)
class Intrinsic:
    """A function whose LLVM code stands wherever a kernel calls it."""

    name: str
    signature: Signature
    generate: Generate


@dataclass(frozen=True)
class External:
    """A function of the C library."""

    name: str
    signature: Signature


class Context:
    """What generate() may ask for."""

    def get_dummy_value(self) -> None:
        """What an intrinsic without a result returns."""


def intrinsic(definition: Callable[..., tuple[Signature, Generate]]) -> Any:
    """Decorates f(typing, x, y, ...), which returns a signature and what writes the code."""
    count = len(signature(definition).parameters)
    return Intrinsic(definition.__name__, *definition(*[None] * count))


def external(name: str, kind: Signature) -> Any:
    """A function of the C library, for kernels to call."""
    return cast(Any, External(name, kind))
