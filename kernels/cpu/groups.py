"""Groups of compiled kernels that models need together. Imports neither llvmlite nor torch before a group is
loaded."""

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Self

from kernels.cpu.instruction_sets import InstructionSet, selected_set
from kernels.cpu.requirements import why_not


class Group(StrEnum):
    """What takes longest to compile comes first: then processes that share the groups end at about the same
    time."""

    modules: tuple[str, ...]
    """The modules of kernels.cpu, without that, that compile when they are imported."""

    BFLOAT16 = "bfloat16", "matmul.gemm_bfloat16", "attention.bfloat16_kv", "attention.combine_parts"
    FLOAT32 = "float32", "attention.float32_kv", "matmul.gemm_float32"
    COMPACT = "compact", "matmul.compact.product"
    """Weights in 12 bits, which some instruction sets have."""
    INT8 = "int8", "matmul.gemm_int8"
    INT8_SUMS = "int8_sums", "matmul.gemm_int8_sums"
    """Weights of 8 bits on several ranks."""
    RANKS = "ranks", "elementwise.rank_parts"
    GROUPS = "groups", "matmul.groups.product", "matmul.groups.inputs"
    """Weights in groups."""
    TWO_LEVELS = (
        "two_levels",
        *("matmul.groups.two_level_product", "matmul.groups.two_level_rounding"),
        "matmul.groups.inputs",
    )
    """Weights of 4 bits with two levels of scales."""
    E2M1 = "e2m1", "matmul.groups.e2m1_product"
    """Weights that are floats of 4 bits."""
    EIGHT_BITS = "eight_bits", "attention.e4m3_kv"
    """Keys and values of 8 bits."""
    LATENTS = "latents", "attention.latent.operations"
    STATES = (
        "states",
        *("states.delta_rule", "states.convolution", "states.selective_scan", "states.norms"),
    )
    """Layers that keep a state per row."""
    EXPERTS = "experts", "experts.route", "experts.dispatch", "adapters.pairs"
    SAMPLER = (
        "sampler",
        *("sampling.choose", "sampling.logits_processors", "runtime.program", "runtime.rank_exchange"),
    )
    """For any CPU."""
    MODEL = (
        "model",
        *("elementwise.norms", "elementwise.activations", "step.prepare_inputs"),
        *("attention.planning.kv_prefetch_list", "elementwise.rotary"),
        *("elementwise.gather", "matmul.packed_rows", "step.check_step", "step.repeat_step"),
        "adapters.adapt",
    )
    """For any model."""

    def __new__(cls, name: str, *modules: str) -> Self:
        group = str.__new__(cls, name)
        group._value_, group.modules = name, modules
        return group

    @staticmethod
    def of_set(chosen: InstructionSet) -> "list[Group]":
        """Returns the groups that models may need with an instruction set."""
        return [group for group in Group if group is not Group.COMPACT or chosen.compact]

    @staticmethod
    def of_host() -> "list[Group]":
        """Returns the groups that this process can run."""
        chosen = selected_set()
        return [Group.SAMPLER] if chosen is None or why_not() else Group.of_set(chosen)

    def load(self) -> None:
        """Imports the modules, which compiles their kernels or takes them from disk."""
        for name in self.modules:
            importlib.import_module(f"kernels.cpu.{name}")

    @property
    def is_missing(self) -> bool:
        """Whether kernels are kept on disk, and those of this group have not all been compiled."""
        from kernels.cpu.compiler.cache import is_cached  # imports llvmlite

        return is_cached() and not self._note.exists()

    def mark_compiled(self) -> None:
        """Says that all kernels of the group are on disk."""
        self._note.touch()

    @property
    def _note(self) -> Path:
        from kernels.cpu.compiler.cache import cache_folder

        return cache_folder() / f"{self}.compiled"
