"""Kernels of tests, which call a device function of the source and store what it returns."""

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime.interpreter import InterpretedFunction

from kernels.triton.sampling.candidates import sort_key


def jit(function: Callable[..., None]) -> Any:
    """Makes a kernel of a function: interpreted where the kernels of the source are, else compiled."""
    return (
        InterpretedFunction(function) if isinstance(sort_key, InterpretedFunction) else triton.jit(function)
    )
