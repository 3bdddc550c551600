"""Imports of what computes, with less work: a third of the processor time of a worker's start is left out."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_METAS = "torch._meta_registrations"
"""Shapes of operations on tensors without values, for compilers of models, with torch's reference
implementations, 0.4 s in all. A tensor on the device `meta` is made without them."""


class _Deferred(ModuleType):
    """Stands for a module whose import only registers things."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Within the block imports are not interrupted by the garbage collector, which would look through all
    that torch makes again and again (0.35 s), and import_metas() is left for later."""
    collects = gc.isenabled()
    gc.disable()
    if "torch" not in sys.modules:
        sys.modules[_METAS] = _Deferred(_METAS)
    try:
        yield
    finally:
        if "torch" not in sys.modules:
            sys.modules.pop(_METAS, None)
        if collects:
            gc.enable()


def import_metas() -> None:
    """Imports what quick_imports() has left out; for libraries that may compile models, or compute without
    values."""
    if isinstance(sys.modules.get(_METAS), _Deferred):
        del sys.modules[_METAS]
        sys.modules["torch"]._meta_registrations = import_module(_METAS)  # type: ignore[attr-defined]
