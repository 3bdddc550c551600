"""Runs tests of kernels with code for aarch64, on an emulated processor:

    python -m pytest -p tests.kernels.cpu.emulation.plugin --emulate neon tests/kernels/cpu/matmul

The kernels of the process are compiled for that instruction set. The processor knows no BF16 and no I8MM, and
has one thread.
"""

import pytest

from kernels.cpu.compiler.llvm import link_with
from kernels.cpu.instruction_sets import NEON, NEON_DOT, compile_for
from tests.kernels.cpu.emulation.linker import EmulatorLinker
from tests.kernels.cpu.emulation.processor import Processor

SETS = {one.name: one for one in (NEON, NEON_DOT)}


def pytest_addoption(parser: pytest.Parser) -> None:
    """--emulate SET."""
    parser.addoption("--emulate", choices=sorted(SETS), required=True, help="instruction set of the kernels")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before a kernel is compiled."""
    compile_for(SETS[config.option.emulate])
    link_with(EmulatorLinker(Processor()))
