"""The CPU kernels, compiled and taken from disk while the worker does something else.

What is compiled lies on disk (kernels.cpu.compiler.cache), once for each version of the kernels. At the first
start of a model processes of their own compile what it needs, as many as there are cores, beside the worker
that imports torch and reads weights; what LLVM needs for that is gone with them. Where one fails, the worker
compiles what it does not find.
"""

import contextlib
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path

from kernels.cpu.instruction_sets import select, selected_name, selected_set
from kernels.cpu.requirements import why_not
from pagewire.host import spawn as process

SAMPLER, MODEL, BFLOAT16, FLOAT32 = "sampler", "model", "bfloat16", "float32"
COMPACT, INT8, GROUPS, E2M1, EIGHT_BITS = "compact", "int8", "groups", "e2m1", "eight_bits"
TWO_LEVELS = "two_levels"
LATENTS, EXPERTS, STATES = "latents", "experts", "states"
"""Groups of kernels: the sampler's, for any CPU, those of any model, those of bfloat16 and of float32, those
of weights in 12 bits, which some instruction sets have, of weights in 8 bits and in groups, of floats of 4
bits, of 4 bits with two levels of scales, those of keys and values of 8 bits, of latents, of experts, and of
layers that keep a state."""
KERNELS = {
    BFLOAT16: ("matmul.gemm_bfloat16", "attention.bfloat16_kv", "attention.combine_parts"),
    FLOAT32: ("attention.float32_kv", "matmul.gemm_halves", "matmul.gemm_float32"),
    COMPACT: ("matmul.compact.product", "matmul.compact.pack"),
    INT8: ("matmul.gemm_int8", "matmul.quantize"),
    GROUPS: ("matmul.groups.product", "matmul.groups.inputs"),
    TWO_LEVELS: (
        *("matmul.groups.two_level_product", "matmul.groups.two_level_rounding"),
        "matmul.groups.inputs",
    ),
    E2M1: ("matmul.groups.e2m1_product",),
    EIGHT_BITS: ("attention.e4m3_kv",),
    LATENTS: ("attention.latent.bfloat16", "attention.latent.float32", "attention.latent.copy_heads"),
    STATES: ("states.delta_rule", "states.convolution", "states.selective_scan", "states.norms"),
    EXPERTS: ("experts.route", "experts.combine", "experts.dispatch", "runtime.decide_rows"),
    SAMPLER: ("sampling.choose", "sampling.logits_processors"),
    MODEL: (
        *("elementwise.norms", "elementwise.activations", "step.prepare_inputs"),
        *("attention.planning.kv_prefetch_list", "elementwise.scaling", "elementwise.rotary"),
        "matmul.packed_rows",
        *("runtime.program", "sampling.argmax", "step.check_step", "step.repeat_step"),
    ),
}
"""Modules of kernels.cpu that compile when they are imported. What takes longest comes first: then processes
that share them end at about the same time."""
HELP = "--help-with"
"""Before the groups of a process whose standard input says which modules it compiles."""
MOST_PROCESSES = 4
"""That compile at once. Each takes 100 MB, and a dense model in bfloat16 has four large kernels: its product,
attention, the sampler, and the product with 12 bits or what merges attention."""
LOOK_S = 0.25
"""Between two reports of progress while the worker waits."""


class Precompiled:
    """Groups of kernels that are being compiled, or have been."""

    def __init__(self, groups: list[str], child: "subprocess.Popen[bytes] | None") -> None:
        """child: the process that compiles; None: everything is on disk."""
        self._groups, self._child = groups, child
        self._thread = threading.Thread(target=self._take, name="kernels", daemon=True)

    def begin(self) -> None:
        """Takes them from disk, in a thread, as soon as they are there."""
        self._thread.start()

    def wait(self, report: Callable[[str, float], None]) -> None:
        """Until they are imported. report: is called again and again, so that the core sees progress."""
        looks = 0
        while self._thread.is_alive():
            report("compiling kernels", 1 - 0.99**looks)  # how far it is, is not known
            looks += 1
            self._thread.join(LOOK_S)

    def close(self) -> None:
        """Ends what still compiles, as after a load that failed. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _take(self) -> None:
        if self._child is not None:
            self._child.wait()
        # The worker meets the error again and reports it.
        with contextlib.suppress(Exception):
            for group in self._groups:
                import_group(group)


def precompile(wanted: Collection[str] | None) -> Precompiled:
    """For a worker on a CPU. Starts a process for what is not on disk. wanted: groups
    (worker.cpu.needed_kernels); of them those that this host can run. None: the model is not known yet, and
    what is on disk is taken."""
    if find_spec("llvmlite") is None:
        return Precompiled([], None)
    from kernels.cpu.compiler.cache import is_cached

    groups = [group for group in _of_host() if wanted is None or group in wanted]
    missing = [group for group in groups if is_cached() and not _note(group).exists()]
    if wanted is None:
        return Precompiled([group for group in groups if group not in missing], None)
    return Precompiled(groups, _start(missing) if missing else None)


def _of_host() -> list[str]:
    """The groups that this host can run."""
    chosen = selected_set()
    if chosen is None or why_not():
        return [SAMPLER]
    return [group for group in KERNELS if group != COMPACT or chosen.compact]


def import_group(group: str) -> None:
    """Imports the modules of a group, which compiles their kernels or takes them from disk."""
    for name in KERNELS[group]:
        importlib.import_module(f"kernels.cpu.{name}")


def _start(groups: list[str], queue: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Starts main() of a process. queue: its standard input."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.cpu.precompile", selected_name(), *groups],
        env=process.child_environment(),
        stdin=queue,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # the worker meets the same error
    )


def _note(group: str) -> Path:
    """A file that is there when all of a group is."""
    from kernels.cpu.compiler.cache import cache_folder

    return cache_folder() / f"{group}.compiled"


def _filled_queue(count: int) -> int:
    """Returns the reading end of a pipe with a byte for each of so many modules, 255 at most. Processes that
    read from it take turns."""
    reading, writing = os.pipe()
    os.write(writing, bytes(range(count)))
    os.close(writing)
    return reading


def _take_from(queue: int, modules: list[str]) -> None:
    """Imports modules until the queue is empty. Where another process compiles what one of them imports, this
    one waits."""
    while number := os.read(queue, 1):
        importlib.import_module(f"kernels.cpu.{modules[number[0]]}")


def _modules(groups: Collection[str]) -> list[str]:
    """In the order of KERNELS."""
    return [name for group, names in KERNELS.items() if group in groups for name in names]


def main(name: str, *groups: str) -> None:
    """The process that compiles groups, with the help of others. name: see
    kernels.cpu.instruction_sets.select()."""
    process.die_with_parent()
    select(name)
    if groups[0] == HELP:
        _take_from(0, _modules(groups[1:]))
        return
    modules = _modules(groups)
    queue = _filled_queue(len(modules))
    helpers = [_start([HELP, *groups], queue) for _ in range(_num_processes() - 1)]
    _take_from(queue, modules)
    for helper in helpers:
        helper.wait()
    for group in groups:
        import_group(group)  # what others have compiled, or have failed to
        _note(group).touch()


def _num_processes() -> int:
    """As many as this process has cores."""
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
