"""When the CPU kernels can run, and what is said when they cannot."""

from pathlib import Path

import pytest

from kernels.cpu import requirements as support

OF_ZEN_4 = "fpu avx512f avx512bw avx512_bf16 avx512vbmi avx512_vbmi2"
ZEN_4 = f"processor : 0\nflags\t\t: {OF_ZEN_4}\n\nprocessor : 1\nflags : fpu\n"


@pytest.mark.parametrize(
    ("cpuinfo", "reason"),
    [
        ("flags : fpu avx2 avx512f avx512bw\n", "lacks AVX512-BF16"),
        ("flags : fpu avx512f avx512bw avx512_bf16\n", "lacks AVX512-VBMI"),
        ("flags : fpu avx512f avx512bw avx512_bf16 avx512vbmi\n", "lacks AVX512-VBMI2"),
        ("Features : fp asimd bf16\n", "lacks"),
    ],
)
def test_other_cpus(monkeypatch: pytest.MonkeyPatch, cpuinfo: str, reason: str):
    monkeypatch.setattr(Path, "read_text", lambda self: cpuinfo)
    assert reason in str(support.why_not())


def test_other_systems(monkeypatch: pytest.MonkeyPatch):
    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert "lacks" in str(support.why_not())


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_text", lambda self: ZEN_4)
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert support.why_not() == "llvmlite is not installed"


def test_a_cpu_that_llvm_knows_less_of(monkeypatch: pytest.MonkeyPatch):
    """As in a virtual machine that hides a part of it."""
    from kernels.cpu.compiler import llvm as machine_code

    monkeypatch.setattr(Path, "read_text", lambda self: ZEN_4)
    monkeypatch.setattr(machine_code, "target_features", lambda: "-avx512bf16,+avx2")
    assert "LLVM does not see" in str(support.why_not())
