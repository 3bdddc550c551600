"""Compiles kernels when their file is imported, and keeps the machine code on disk.

Nothing is compiled later: a kernel has one signature, and calling it with other types is an error.
The code is kept in a folder of the user's own, named by what the kernels are made of; Numba adds
which CPU it is for. What lies there is executed, as a .pyc file is, so that a folder which others may
write to is not used.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba.core.registry import cpu_target

logger = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., None])


def compiled(signature: str) -> Callable[[Kernel], Kernel]:
    """Decorates a function that Python calls. It does not hold the interpreter's lock while it runs."""
    decorator = numba.njit(signature, nogil=True, cache=CACHED, error_model="numpy")
    return cast(Callable[[Kernel], Kernel], decorator)


def operation(function: Callable[[int, int, int, int], None]) -> int:
    """Decorates an operation of a program: it becomes its address.

    (record, first, count, thread): computes units first .. first + count of a record; see
    kernels.cpu.program.
    """
    decorator = numba.cfunc("void(int64, int64, int64, int64)", cache=CACHED, error_model="numpy")
    return int(decorator(function).address)


def target_features() -> str:
    """Of the CPU that Numba compiles for: "+avx512f,-amx-tile,..."."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return str(features)


def cache_folder() -> Path:
    """Where this version of the kernels is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sources:  # Numba itself looks at the file of the kernel only, not at what it imports
        digest.update(source.read_bytes())
    return Path(base) / "pagewire" / f"kernels-{digest.hexdigest()[:16]}"


def use_cache(folder: Path) -> bool:
    """Makes Numba keep its code there. False, with a warning, where that is impossible or unsafe."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write to {folder}")
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is read-only")
    except OSError as error:
        logger.warning("the CPU kernels are compiled at every start, which takes seconds: %s", error)
        return False
    config = cast(Any, numba.config)
    config.CACHE_DIR = str(folder)
    return True


CACHED = use_cache(cache_folder())
