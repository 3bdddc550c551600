"""The instruction sets that kernels are compiled for, and which of them this host has.

Needs neither llvmlite nor torch. A process computes with one set: select() says which, before the first
kernel is compiled (kernels.cpu.isa.selected).
"""

from dataclasses import dataclass
from pathlib import Path

AUTO, NONE = "auto", "none"


X86_64, AARCH64 = "x86_64", "aarch64"
"""Architectures, as platform.machine() and LLVM's triples call them."""


@dataclass(frozen=True)
class InstructionSet:
    """A set that processors have. Flags and features include those of the sets that it builds on."""

    name: str  # as --cpu-kernels has it
    title: str  # as messages have it
    flags: frozenset[str]  # as Linux calls them
    features: frozenset[str]  # as LLVM calls them
    compact: bool = False  # has fast instructions for weights in 12 bits
    architecture: str = X86_64

    @property
    def triple(self) -> str:
        """As LLVM calls processors with this set, under Linux."""
        return f"{self.architecture}-unknown-linux-gnu"

    def extended(
        self, name: str, title: str, flags: set[str], features: set[str], compact: bool = False
    ) -> "InstructionSet":
        """Returns a set that builds on this one, with flags and features besides its own."""
        flags_of_both, features_of_both = self.flags | flags, self.features | features
        return InstructionSet(name, title, flags_of_both, features_of_both, compact, self.architecture)


BASELINE = frozenset(
    {"64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2"}
    | {"popcnt", "sahf", "crc32", "avx", "bmi", "bmi2", "lzcnt", "movbe", "xsave", "prfchw"}
)
"""Features of LLVM that every processor with AVX2 has."""

_AVX2 = {"avx2", "fma", "f16c"}
AVX2 = InstructionSet("avx2", "AVX2", frozenset(_AVX2), BASELINE | _AVX2, compact=True)
AVX2_VNNI = AVX2.extended("avx2_vnni", "AVX-VNNI", {"avx_vnni"}, {"avxvnni"}, compact=True)
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
AVX512 = AVX2.extended("avx512", "AVX-512", _AVX512, _AVX512)
AVX512_VNNI = AVX512.extended("avx512_vnni", "AVX512-VNNI", {"avx512_vnni"}, {"avx512vnni"})
AVX512_VBMI = AVX512_VNNI.extended(
    "avx512_vbmi", "AVX512-VBMI", {"avx512vbmi", "avx512_vbmi2"}, {"avx512vbmi", "avx512vbmi2"}, compact=True
)
AVX512_BF16 = AVX512_VBMI.extended(
    "avx512_bf16", "AVX512-BF16", {"avx512_bf16"}, {"avx512bf16"}, compact=True
)
"""AMD has it from Zen 4 on (2022), Intel from Sapphire Rapids on (2023). Cooper Lake lacks AVX512-VBMI."""

NEON = InstructionSet(
    "neon", "NEON", frozenset({"fp", "asimd"}), frozenset({"fp-armv8", "neon"}), architecture=AARCH64
)
NEON_DOT = NEON.extended("neon_dot", "NEON with dot products", {"asimddp", "atomics"}, {"dotprod", "lse"})
NEON_BF16 = NEON_DOT.extended(
    "neon_bf16", "NEON with bfloat16 and int8 products", {"bf16", "i8mm"}, {"bf16", "i8mm"}
)

SETS = (AVX512_BF16, AVX512_VBMI, AVX512_VNNI, AVX512, AVX2_VNNI, AVX2, NEON_BF16, NEON_DOT, NEON)
"""Of each architecture, best first; but see host_sets()."""
INTEL = "GenuineIntel"
"""A maker of processors, as Linux calls it."""

_selected = AUTO
_in_use: InstructionSet | None = None


def host_sets() -> list[InstructionSet]:
    """Those that this host has, best first. Intel's processors multiply slower with AVX512-BF16 than without
    (kernels.cpu.isa.sets.avx512)."""
    found = [one for one in SETS if one.flags <= cpu_flags()]
    if AVX512_VBMI in found and INTEL in cpu_lines("vendor_id"):
        found.sort(key=lambda one: one is not AVX512_VBMI)
    return found


def select(name: str) -> None:
    """Chooses the set of this process: one that the host has, "auto" for the best of them, or "none": models
    are computed without kernels. Raises ValueError for any other name, and RuntimeError where kernels are
    compiled for another set already."""
    global _selected
    if name not in (AUTO, NONE, *(one.name for one in host_sets())):
        raise ValueError(f"{name} is not an instruction set of this host")
    if _in_use is not None and name not in (AUTO, NONE, _in_use.name):
        raise RuntimeError(f"this process has kernels for {_in_use.name} already")
    _selected = name


def selected_name() -> str:
    """What select() was given."""
    return _selected


def selected_set() -> InstructionSet | None:
    """What models are computed with; None: no kernels."""
    return None if _selected == NONE else target_set()


def target_set() -> InstructionSet | None:
    """What kernels are compiled for: also those of sampling, which need no set. None: the host has none."""
    wanted = (one for one in host_sets() if _selected in (AUTO, NONE, one.name))
    return _in_use or next(wanted, None)


def compile_for(chosen: InstructionSet) -> None:
    """Of a process that runs no kernel, but compiles some for a processor that this host may not have. Raises
    RuntimeError where kernels are compiled for another set already."""
    global _in_use
    if _in_use not in (None, chosen):
        raise RuntimeError(f"this process has kernels for {_in_use.name} already")
    _in_use = chosen


def use_target_set() -> InstructionSet | None:
    """Returns target_set(), which stays what it is from now on."""
    global _in_use
    _in_use = target_set()
    return _in_use


def cpu_flags() -> frozenset[str]:
    """Of the first core, as Linux reports them: "flags" of an x86-64 processor, "Features" of an aarch64 one.
    None elsewhere."""
    return frozenset(next(iter(cpu_lines("flags", "Features")), "").split())


def cpu_lines(*names: str) -> list[str]:
    """What Linux reports of each core under any of these names; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(names)]
