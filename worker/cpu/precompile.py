"""The CPU kernels, compiled and taken from disk while the worker does something else.

What is compiled lies on disk (kernels.cpu.compiler.cache), once for each version of the kernels. At the first
start of a model processes of their own compile what it needs, as many as there are cores, beside the worker
that imports torch and reads weights; what LLVM needs for that is gone with them. Where one fails, the worker
compiles what it does not find.

Which groups of kernels a model needs follows from the configuration alone, before torch is imported. What is
not foreseen here is compiled when it is used first, while the model is loaded.
"""

import contextlib
import importlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path

from kernels.cpu import instruction_sets
from kernels.cpu.groups import Group
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.tensor_types import Q4_0
from pagewire.host import spawn as process
from pagewire.internal.v1 import worker_pb2
from worker.config.hf_config import Fields, read_config, read_quantization
from worker.group_shape import group_shape

MXFP4 = "mxfp4"
STORED_IN_GROUPS = ("awq", "compressed-tensors", "gptq", MXFP4)
"""Formats whose integers may be kept (worker.cpu.weights)."""
FIELDS = {
    **{"linear_": Group.STATES, "mamba_": Group.STATES, "kv_lora_": Group.LATENTS},
    **{"num_experts": Group.EXPERTS, "num_local_experts": Group.EXPERTS, "n_routed_experts": Group.EXPERTS},
}
"""Groups that models need whose configurations have a field that begins so."""


def needed_groups(initialize: worker_pb2.Initialize) -> set[Group]:
    """Returns the groups. What cannot be read is reported when the model is loaded."""
    groups, in_groups = {Group.SAMPLER, Group.MODEL}, may_have_groups(initialize)
    if in_groups:
        groups.add(Group.TWO_LEVELS if initialize.quantization else Group.GROUPS)
    if initialize.kv_cache_dtype:
        groups.add(Group.EIGHT_BITS)
    if math.prod(group_shape(initialize)) > 1:
        groups.add(Group.RANKS)
    if initialize.quantization:  # it makes integers, of weights in bfloat16; those of the head have 8 bits
        groups |= {Group.BFLOAT16, Group.INT8}
        if initialize.quantization == "int8" and initialize.tensor_parallel_size > 1:
            groups.add(Group.INT8_SUMS)
    try:
        config = read_config(Path(initialize.model_path), initialize.config_overrides)
        sections = [config, config.object("text_config")]
        if in_groups and not initialize.quantization and _are_floats(config):
            groups.add(Group.E2M1)
    except StartupError:
        return groups | {Group.BFLOAT16}
    named = {name for section in sections for name in section.names() if section.has(name)}
    groups |= {group for start, group in FIELDS.items() if any(name.startswith(start) for name in named)}
    if not initialize.quantization:
        groups |= _groups_of_dtype(initialize.dtype, sections, in_groups)
    return groups


def _groups_of_dtype(asked: str, sections: list[Fields], in_groups: bool) -> set[Group]:
    """asked: as in Initialize. in_groups: whether weights may be; then float16 is computed in bfloat16. Of
    both dtypes, where the checkpoint does not say its own: then it is that of the weights."""
    said = [section.value(name) for section in sections for name in ("dtype", "torch_dtype")]
    dtype = asked if asked not in ("", "auto") else next((name for name in said if name is not None), None)
    if dtype == "float32" or (dtype == "float16" and not in_groups):
        return {Group.FLOAT32}
    in_bfloat16 = {Group.BFLOAT16, Group.COMPACT}
    return in_bfloat16 if dtype in ("bfloat16", "float16") else {*in_bfloat16, Group.FLOAT32}


def may_have_groups(initialize: worker_pb2.Initialize) -> bool:
    """True if weights are made to integers in groups, or may be stored as such."""
    if initialize.quantization or initialize.load_format == "dummy":
        return initialize.quantization == "int4"
    path = Path(initialize.model_path)
    try:
        if is_gguf(path):
            return any(info.type == Q4_0 for info in read_header(path).tensors.values())
        settings = read_quantization(read_config(path))
        return settings is not None and settings.text("quant_method") in STORED_IN_GROUPS
    except StartupError:  # loading reports it
        return False


def _are_floats(config: Fields) -> bool:
    """Whether a checkpoint has floats of 4 bits in groups."""
    settings = read_quantization(config)
    return settings is not None and settings.text("quant_method") == MXFP4


HELP = "--help-with"
"""Before the groups of a process whose standard input says which modules it compiles."""
MOST_PROCESSES = 4
"""That compile at once. Each takes 100 MB, and a dense model in bfloat16 has four large kernels: its product,
attention, the sampler, and the product with 12 bits or what merges attention."""
LOOK_S = 0.25
"""Between two reports of progress while the worker waits."""


def select_instruction_set(name: str) -> None:
    """Before a kernel is compiled. name: see kernels.cpu.instruction_sets.select(); "" for the best one.
    Raises StartupError where this host has no such set."""
    try:
        instruction_sets.select(name or instruction_sets.AUTO)
    except ValueError as error:
        names = ", ".join(one.name for one in instruction_sets.host_sets())
        raise StartupError(
            f"cannot compile CPU kernels for {name}",
            f"this host has {names}" if names else "this host has no instruction set with kernels",
            f"leave --cpu-kernels out, or use one of these, or {instruction_sets.NONE}"
            if names
            else "leave --cpu-kernels out",
        ) from error


class Precompiled:
    """Groups of kernels that are being compiled, or have been."""

    def __init__(self, groups: Collection[Group], child: "subprocess.Popen[bytes] | None") -> None:
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
                group.load()


def precompile(wanted: Collection[Group] | None) -> Precompiled:
    """For a worker on a CPU. Starts a process for what is not on disk. wanted: of them those that this host
    can run (worker.cpu.precompile). None: the model is not known yet, and what is on disk is taken."""
    if find_spec("llvmlite") is None:
        return Precompiled([], None)
    groups = [group for group in Group.of_host() if wanted is None or group in wanted]
    missing = [group for group in groups if group.is_missing]
    if wanted is None:
        return Precompiled([group for group in groups if group not in missing], None)
    return Precompiled(groups, _start(missing) if missing else None)


def _start(groups: Collection[str], queue: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Starts main() of a process. queue: its standard input."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.cpu.precompile", instruction_sets.selected_name(), *groups],
        env=process.child_environment(),
        stdin=queue,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # the worker meets the same error
    )


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


def main(name: str, *groups: str) -> None:
    """The process that compiles groups, with the help of others. name: see
    kernels.cpu.instruction_sets.select()."""
    process.die_with_parent()
    instruction_sets.select(name)
    helps, chosen = groups[0] == HELP, [group for group in Group if group in groups]
    modules = [module for group in chosen for module in group.modules]
    if helps:
        _take_from(0, modules)
        return
    queue = _filled_queue(len(modules))
    helpers = [_start([HELP, *groups], queue) for _ in range(_num_processes() - 1)]
    _take_from(queue, modules)
    for helper in helpers:
        helper.wait()
    for group in chosen:
        group.load()  # what others have compiled, or have failed to
        group.mark_compiled()


def _num_processes() -> int:
    """As many as this process has cores."""
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
