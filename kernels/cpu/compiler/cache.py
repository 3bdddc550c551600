"""Compiles kernels when their file is imported, and keeps the machine code on disk.

Nothing is compiled later: a kernel has one signature. The code is kept in a folder of the user's own, named
by what it is made from: the kernels, LLVM and the CPU. What lies there is executed, as a .pyc file is, so
that a folder which others may write to is not used, and each file begins with a digest of its code: one that
a crash or a full disk has torn is compiled again. Processes that need the same kernel at once compile it
once: the others wait for it.

A process that uses a folder holds a shared lock on it as long as it lives, and has set its time. Folders that
no process has used for a while, those of earlier versions, are removed under an exclusive lock: so none is
that a process uses, of this version or of another.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

from kernels.cpu.compiler.llvm import assemble, current_linker, target_name
from kernels.cpu.compiler.lowering import lower
from kernels.cpu.compiler.record_values import is_record
from kernels.cpu.compiler.records import Operation, OwnRecord
from kernels.private_files import read_private, require_private

PREFIX, REMOVED = "kernels-", "removed-"
"""Of the names of folders: with machine code, and of those that are being removed."""
UNUSED_S = 30 * 24 * 3600.0
"""Seconds without a start, after which a folder is removed."""

_held: dict[Path, int] = {}
"""Open folders, whose locks this process holds."""


def hold(folder: Path) -> None:
    """Makes a folder unless it is there, and keeps it from being removed as long as this process lives. Where
    the file system has no locks, no folder is removed. Raises OSError."""
    while folder not in _held:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed just now
            os.utime(folder)
            opened = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_SH)
            if _lies_at(opened, folder):
                _held[folder] = opened
            else:
                os.close(opened)


def remove_unused(own: Path, now: float | None = None) -> None:
    """Removes the folders beside `own` that are not in use and have not been for UNUSED_S. now: seconds since
    the epoch; None: this moment. What cannot be removed stays."""
    before = (time.time() if now is None else now) - UNUSED_S
    with contextlib.suppress(OSError):
        for folder in own.parent.iterdir():
            if folder.name.startswith(REMOVED):  # by a process that was killed
                shutil.rmtree(folder, ignore_errors=True)
            elif folder != own and folder.name.startswith(PREFIX):
                _remove(folder, before)


def _remove(folder: Path, before: float) -> None:
    """Unless it is locked, or has been used since `before`."""
    with contextlib.suppress(OSError):
        if folder.stat().st_mtime >= before:
            return
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.stat().st_mtime < before and _lies_at(opened, folder):
                away = tempfile.mkdtemp(prefix=REMOVED, dir=folder.parent)
                os.replace(folder, away)
                shutil.rmtree(away, ignore_errors=True)
        finally:
            os.close(opened)


def _lies_at(opened: int, folder: Path) -> bool:
    """Whether an open folder is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(opened), folder.stat())
    except FileNotFoundError:
        return False


logger = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_C_TYPES = {int: ctypes.c_int64, float: ctypes.c_double, bool: ctypes.c_bool, type(None): None}


_DIGEST_BYTES = hashlib.sha256().digest_size
_MOST_BYTES = 64 << 20
"""Limit for a file: a hundred times the largest kernel."""


def compiled(kernel: Kernel) -> Kernel:
    """Decorates a function that Python calls. It does not hold the interpreter's lock while it runs."""
    hints = typing.get_type_hints(kernel)
    kinds: list[Any] = [_c_type(hints[name]) for name in ("return", *signature(kernel).parameters)]
    return cast(Kernel, current_linker().function(_address(kernel, _name(kernel)), kinds))


def _c_type(annotation: Any) -> Any:
    """What ctypes passes: a record by its address."""
    return ctypes.POINTER(annotation) if is_record(annotation) else _C_TYPES[annotation]


def operation(kernel: Callable[[OwnRecord, int, int, int], None]) -> Operation[OwnRecord]:
    """Decorates an operation of a program: it becomes its address.

    (record, first, count, thread): computes units first .. first + count of a record; see
    kernels.cpu.runtime.program.
    """
    return operation_for(kernel)


def operation_for(kernel: Callable[..., None], *statics: Any, suffix: str = "") -> Operation[Any]:
    """Returns the operation that a kernel is for these values of its first parameters, which are Static.
    suffix: of its name."""
    name = _name(kernel) + suffix
    return Operation(_address(kernel, name, *statics), name, partial(kernel, *statics))


def _name(kernel: Callable[..., Any]) -> str:
    """Returns the name of its machine code."""
    return f"{kernel.__module__}.{kernel.__qualname__}".replace("<locals>", "local")


def _address(kernel: Callable[..., Any], name: str, *statics: Any) -> int:
    """Returns the address of machine code, which is compiled where it is not on disk."""
    file = cache_folder() / f"{name}.o" if kernel.__module__.startswith("kernels.cpu.") else None
    if file is None or not is_cached():
        return current_linker().load(assemble(lower(kernel, name, *statics)), name)
    machine_code = _kept(file)
    if machine_code is None:
        with _only_process(file.with_suffix(".lock")):
            machine_code = _kept(file)
            if machine_code is None:
                machine_code = assemble(lower(kernel, name, *statics))
                _keep(machine_code, file)
    return current_linker().load(machine_code, name)


def _kept(file: Path) -> bytes | None:
    """Returns the machine code on disk; None if there is none, or if the file is damaged."""
    try:
        content = read_private(file, _MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read %s, the kernel is compiled again: %s", file, error)
        return None
    digest, machine_code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if not machine_code or digest != hashlib.sha256(machine_code).digest():
        logger.warning("%s is damaged, the kernel is compiled again", file)
        return None
    return machine_code


@contextlib.contextmanager
def _only_process(file: Path) -> Iterator[None]:
    """Waits for other processes that compile this kernel. The system opens the lock of a process that ends.
    Where the file system has no locks, processes do not wait."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            fcntl.flock(stack.enter_context(file.open("a")), fcntl.LOCK_EX)
        yield


def _keep(machine_code: bytes, file: Path) -> None:
    """Another process sees all of it or nothing. Where there is no room, it is not kept. It need not be on
    the disk yet: what a crash of the machine has torn, its digest does not fit."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
            temporary.write(hashlib.sha256(machine_code).digest() + machine_code)
        os.replace(temporary.name, file)
    except OSError as error:
        logger.warning("a CPU kernel is compiled at every start: %s", error)


@cache
def cache_folder() -> Path:
    """Where the machine code of these kernels for this CPU is kept. Kernels take constants of kernels.ops,
    such as the order of columns."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(target_name().encode())
    kernels = Path(__file__).parents[2]
    for source in sorted(each for part in ("cpu", "ops") for each in (kernels / part).rglob("*.py")):
        digest.update(source.read_bytes())
    return Path(base) / "pagewire" / f"kernels-{digest.hexdigest()[:16]}"


@cache
def is_cached() -> bool:
    """Whether code can be kept. If not, a warning says why. The folder is in use as long as this process
    lives; those of other versions are removed after a while (kernels.cpu.compiler.cache)."""
    is_usable = use_cache(cache_folder())
    if is_usable:
        remove_unused(cache_folder())
    return is_usable


def use_cache(folder: Path) -> bool:
    """Makes the folder. False, with a warning, where that is impossible or unsafe."""
    try:
        hold(folder)
        require_private(folder)
    except OSError as error:
        logger.warning("the CPU kernels are compiled at every start, which takes seconds: %s", error)
        return False
    return True
