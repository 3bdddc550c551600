"""Compiles the CPU kernels for processors that this host need not have, and checks what they need there.

    python -m scripts.cross_kernels                   # all kernels, for each instruction set
    python -m scripts.cross_kernels --sets neon_dot --kernels matmul.gemm_bfloat16,elementwise.norms

A kernel may call functions of the C library that are in this process too, and no others; LLVM ends the
process at an instruction that the set lacks. Prints a line for each set, and exits with 1 where a kernel
fails. Each set has a process of its own, since a process compiles for one. Nothing is kept on disk.
"""

import argparse
import ctypes
import importlib
import os
import subprocess
import sys
import tempfile
import time

from kernels.cpu.compiler.llvm import Collector, link_with
from kernels.cpu.groups import Group
from kernels.cpu.instruction_sets import SETS, InstructionSet, compile_for
from scripts.object_file import ObjectFile

NAMES = [one.name for one in SETS]


def all_kernels(chosen: InstructionSet) -> list[str]:
    """Modules of kernels.cpu whose kernels a worker with this set may need."""
    return [name for group in Group.of_set(chosen) for name in group.modules]


def compile_kernels(chosen: InstructionSet, modules: list[str]) -> dict[str, bytes]:
    """Object files by the names of their kernels. modules: of kernels.cpu, without that; what they import is
    compiled too. In a process that has compiled nothing yet."""
    compile_for(chosen)
    collector = Collector()
    link_with(collector)
    for name in modules:
        importlib.import_module(f"kernels.cpu.{name}")
    return collector.objects


def missing_functions(needed: set[str]) -> set[str]:
    """Those that neither the C library nor its mathematical part has."""
    libraries = [ctypes.CDLL(None), ctypes.CDLL("libm.so.6")]
    return {name for name in needed if not any(hasattr(library, name) for library in libraries)}


def check(chosen: InstructionSet, modules: list[str]) -> int:
    """Compiles, prints a line, and returns the exit status."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        objects = compile_kernels(chosen, modules)
    needed = set().union(*(ObjectFile(code).undefined for code in objects.values()))
    size, seconds = sum(map(len, objects.values())) / 1024, time.perf_counter() - began
    functions = ", ".join(sorted(needed)) or "nothing"
    print(f"{chosen.name}: {len(objects)} kernels, {size:.0f} KiB, {seconds:.1f} s, needs {functions}")
    missing = missing_functions(needed)
    if missing:
        print(f"{chosen.name}: no such function: {', '.join(sorted(missing))}")
    return 1 if missing or not objects else 0


def main() -> int:
    """Runs a process for each set."""
    parser = argparse.ArgumentParser(description="compile CPU kernels for other processors")
    parser.add_argument("--sets", default=",".join(NAMES), help="instruction sets, with commas between")
    parser.add_argument("--kernels", default="", help="modules of kernels.cpu, with commas between; else all")
    options = parser.parse_args()
    names = options.sets.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"--sets: {', '.join(unknown)}: there are {', '.join(NAMES)}")
    modules = options.kernels.split(",") if options.kernels else []
    if len(names) == 1:
        chosen = next(one for one in SETS if one.name == names[0])
        return check(chosen, modules or all_kernels(chosen))
    command = [sys.executable, "-m", "scripts.cross_kernels", "--kernels", options.kernels, "--sets"]
    statuses = [subprocess.run([*command, name], check=False).returncode for name in names]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
