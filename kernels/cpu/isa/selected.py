"""The operations of the instruction set that this process computes with."""

from importlib import import_module
from platform import machine

from kernels.cpu.instruction_sets import X86_64, use_target_set
from kernels.cpu.isa.operations import Operations


def _operations() -> Operations:
    """Of use_target_set(); where there is none, what every processor of this architecture has."""
    chosen = use_target_set()
    name = chosen.name if chosen is not None else machine()
    if chosen is None and name != X86_64:
        return Operations()
    family = import_module(f"kernels.cpu.isa.sets.{name.partition('_')[0]}")
    operations: Operations = family.SETS[name]
    return operations


OPERATIONS = _operations()
