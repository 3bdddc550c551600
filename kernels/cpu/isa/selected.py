"""The operations of the instruction set that this process computes with."""

from importlib import import_module

from kernels.cpu.instruction_sets import use_target_set
from kernels.cpu.isa.operations import Operations


def _operations() -> Operations:
    """Of kernels.cpu.instruction_sets.use_target_set()."""
    chosen = use_target_set()
    if chosen is None:
        return Operations()
    operations: Operations = import_module(f"kernels.cpu.isa.{chosen.name}").OPERATIONS
    return operations


OPERATIONS = _operations()
