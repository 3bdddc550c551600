"""Which instruction set the kernels of this worker are compiled for."""

from kernels.cpu.instruction_sets import AUTO, NONE, host_sets, select
from pagewire.errors import StartupError


def select_instruction_set(name: str) -> None:
    """Before a kernel is compiled. name: see kernels.cpu.instruction_sets.select(); "" for the best one.
    Raises StartupError where this host has no such set."""
    try:
        select(name or AUTO)
    except ValueError as error:
        names = ", ".join(one.name for one in host_sets())
        raise StartupError(
            f"cannot compile CPU kernels for {name}",
            f"this host has {names}" if names else "this host has no instruction set with kernels",
            f"leave --cpu-kernels out, or use one of these, or {NONE}"
            if names
            else "leave --cpu-kernels out",
        ) from error
