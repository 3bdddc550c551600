"""Whether the kernels of this folder can run here. Needs neither llvmlite nor torch.

They are written for AVX512-BF16: bfloat16 products, summed in float32, 32 of them per instruction.
AMD has it from Zen 4 on (2022), Intel from Sapphire Rapids on (2023), and in Cooper Lake (2020), which
lacks AVX512-VBMI and -VBMI2, which unpack weights.
"""

from importlib.util import find_spec
from pathlib import Path

CPU_FLAGS = {"avx512f", "avx512bw", "avx512_bf16"}
UNPACK = {"avx512vbmi": "AVX512-VBMI", "avx512_vbmi2": "AVX512-VBMI2"}
"""A table of 64 bytes; numbers from a list to where they belong. As Linux calls them, and others."""


def why_not() -> str | None:
    """What is missing, in words; None where the kernels can run."""
    if not _cpu_flags() >= CPU_FLAGS:
        return "the CPU lacks AVX512-BF16"
    for flag, name in UNPACK.items():
        if flag not in _cpu_flags():
            return f"the CPU lacks {name}"
    if find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    from kernels.cpu.compiler.llvm import target_features

    if "+avx512bf16" not in target_features():
        return "LLVM does not see AVX512-BF16 in this CPU"
    return None


def why_not_int8() -> str | None:
    """What is missing for weights in 8 bits, in words; None where nothing is."""
    return "the CPU lacks AVX512-VNNI" if "avx512_vnni" not in _cpu_flags() else why_not()


def _cpu_flags() -> set[str]:
    """Of the first core, as Linux reports them; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
