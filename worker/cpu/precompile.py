"""The CPU kernels, compiled and taken from disk while the worker does something else.

What is compiled lies on disk (kernels.cpu.compiler.cache), once for each version of the kernels. At the first
start a process of its own compiles it, beside the worker that imports torch and reads weights; what LLVM
needs for that is gone with the process. Where it fails, the worker compiles what it does not find.
"""

import contextlib
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from kernels.cpu.instruction_sets import select, selected_name, selected_set
from kernels.cpu.requirements import why_not
from pagewire.host import spawn as process

SAMPLER, MODEL, FLOAT32, COMPACT, GROUPS = "sampler", "model", "float32", "compact", "groups"
EIGHT_BITS = "eight_bits"
"""Groups of kernels: the sampler's, for any CPU, those of a model in bfloat16, what float32 has of its own,
those of weights in 12 bits, which some instruction sets have, those of weights in groups, and those of keys
and values of 8 bits."""
KERNELS = {
    SAMPLER: ("sampling.choose", "sampling.mask_rows", "sampling.penalties"),
    MODEL: (
        *(
            "attention.attention",
            "attention.split_kv",
            "attention.store_kv",
            "attention.planning.kv_prefetch_list",
        ),
        *("attention.latent.bfloat16", "attention.latent.copy_heads"),
        *("delta.convolution", "delta.delta_rule", "delta.gated_norm", "delta.output_gate"),
        *("elementwise.activation", "elementwise.adjust_logits", "elementwise.gated_gelu"),
        "elementwise.clamped_swiglu",
        *("elementwise.layer_norm", "elementwise.plain_activation", "elementwise.scaled_add"),
        *("elementwise.rms_norm", "elementwise.rotary"),
        *("experts.combine", "experts.dispatch", "experts.grouped_product", "experts.route"),
        *("mamba.grouped_norm", "mamba.selective_scan"),
        "experts.weigh",
        *("matmul.gemm", "matmul.quantize"),
        *("runtime.decide_rows", "runtime.program"),
        *("sampling.argmax", "step.check_step", "step.prepare_inputs"),
    ),
    FLOAT32: (
        *("attention.float32_kv", "attention.latent.float32"),
        *("elementwise.float32_rows", "matmul.gemm_float32", "matmul.halves.product"),
    ),
    COMPACT: ("matmul.gemm12", "matmul.pack12"),
    EIGHT_BITS: ("attention.e4m3_kv",),
    GROUPS: ("matmul.groups.inputs", "matmul.groups.product", "matmul.groups.rounding"),
}
"""Modules of kernels.cpu that compile when they are imported."""
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

    def _take(self) -> None:
        if self._child is not None:
            self._child.wait()
        # The worker meets the error again and reports it.
        with contextlib.suppress(Exception):
            for group in self._groups:
                import_group(group)


def precompile(in_groups: bool = False, in_eight_bits: bool = False) -> Precompiled:
    """For a worker on a CPU. Starts a process for what is not on disk. in_groups: weights will be.
    in_eight_bits: keys and values will be."""
    if find_spec("llvmlite") is None:
        return Precompiled([], None)
    from kernels.cpu.compiler.cache import is_cached

    chosen = selected_set()
    groups = [SAMPLER] if chosen is None or why_not() else [SAMPLER, MODEL, FLOAT32]
    if MODEL in groups and chosen is not None and chosen.compact:
        groups.append(COMPACT)
    if MODEL in groups and in_groups:
        groups.append(GROUPS)
    if MODEL in groups and in_eight_bits:
        groups.append(EIGHT_BITS)
    missing = [group for group in groups if is_cached() and not _note(group).exists()]
    return Precompiled(groups, _start(missing) if missing else None)


def import_group(group: str) -> None:
    """Imports the modules of a group, which compiles their kernels or takes them from disk."""
    for name in KERNELS[group]:
        importlib.import_module(f"kernels.cpu.{name}")


def _start(groups: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.cpu.precompile", selected_name(), *groups],
        env=process.child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # the worker meets the same error
    )


def _note(group: str) -> Path:
    """A file that is there when all of a group is."""
    from kernels.cpu.compiler.cache import cache_folder

    return cache_folder() / f"{group}.compiled"


def main(name: str, *groups: str) -> None:
    """The process. name: see kernels.cpu.instruction_sets.select()."""
    process.die_with_parent()
    select(name)
    for group in groups:
        import_group(group)
        _note(group).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
