"""Whether the kernels of this folder can run here. Needs neither llvmlite nor torch."""

from importlib.util import find_spec

from kernels.cpu.instruction_sets import BASELINE, NONE, X86_64, selected_name, selected_set


def why_not() -> str | None:
    """What is missing, in words; None where the kernels can run."""
    if selected_name() == NONE:
        return "--cpu-kernels is none"
    chosen = selected_set()
    if chosen is None:
        return "the CPU lacks AVX2, FMA or F16C, and NEON"
    if find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    if chosen.architecture != X86_64:
        return None  # LLVM takes features from where host_sets() has them
    from kernels.cpu.compiler.llvm import host_features

    if not all(host_features().get(name) for name in chosen.features - BASELINE):
        return f"LLVM does not see {chosen.title} in this CPU"
    return None
