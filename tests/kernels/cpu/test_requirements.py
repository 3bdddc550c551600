"""When the CPU kernels can run, and what is said when they cannot."""

from pathlib import Path

import pytest

from kernels.cpu import instruction_sets as sets
from kernels.cpu import requirements as support

HASWELL = "fpu fma avx2 f16c"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512vl avx512dq"
ICE_LAKE = f"{SKYLAKE} avx512_vnni avx512vbmi avx512_vbmi2"
ZEN_4 = f"{ICE_LAKE} avx512_bf16"
CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
NEOVERSE_N1 = f"{CORTEX_A72} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
NEOVERSE_V1 = f"{NEOVERSE_N1} sve bf16 i8mm svebf16 svei8mm"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without kernels."""
    monkeypatch.setattr(sets, "_selected", "auto")
    monkeypatch.setattr(sets, "_in_use", None)


def host_with(monkeypatch: pytest.MonkeyPatch, flags: str, maker: str = "AuthenticAMD") -> None:
    cpuinfo = f"processor : 0\nvendor_id : {maker}\nflags\t\t: {flags}\n\nprocessor : 1\nflags : fpu\n"
    monkeypatch.setattr(Path, "read_text", lambda self: cpuinfo)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (HASWELL, ["avx2"]),
        (f"{HASWELL} avx_vnni", ["avx2_vnni", "avx2"]),
        (SKYLAKE, ["avx512", "avx2"]),
        (f"{SKYLAKE} avx512_bf16", ["avx512", "avx2"]),
        (f"{SKYLAKE} avx512_vnni avx512_bf16", ["avx512_vnni", "avx512", "avx2"]),
        (ICE_LAKE, ["avx512_vbmi", "avx512_vnni", "avx512", "avx2"]),
        (ZEN_4, ["avx512_bf16", "avx512_vbmi", "avx512_vnni", "avx512", "avx2"]),
        (HASWELL.replace("f16c", ""), []),
    ],
)
def test_sets_of_a_host(monkeypatch: pytest.MonkeyPatch, flags: str, names: list[str]):
    """The best one is chosen; a lower one can be."""
    host_with(monkeypatch, flags)
    assert [one.name for one in sets.host_sets()] == names
    chosen = sets.selected_set()
    assert (chosen.name if chosen else None) == (names[0] if names else None)
    for name in names:
        sets.select(name)
        assert [one.name for one in sets.SETS if one is sets.selected_set()] == [name]
    with pytest.raises(ValueError, match="not an instruction set of this host"):
        sets.select("avx10")


def test_intel_multiplies_bfloat16_faster_as_float32(monkeypatch: pytest.MonkeyPatch):
    """The set with dot products of bfloat16 can be chosen all the same."""
    host_with(monkeypatch, ZEN_4, sets.INTEL)
    names = [one.name for one in sets.host_sets()]
    assert names == ["avx512_vbmi", "avx512_bf16", "avx512_vnni", "avx512", "avx2"]
    sets.select("avx512_bf16")
    assert sets.selected_set() is sets.AVX512_BF16


@pytest.mark.parametrize(
    ("features", "names"),
    [
        (CORTEX_A72, ["neon"]),
        (f"{CORTEX_A72} asimddp", ["neon"]),
        (NEOVERSE_N1, ["neon_dot", "neon"]),
        (f"{NEOVERSE_N1} bf16", ["neon_dot", "neon"]),
        (NEOVERSE_V1, ["neon_bf16", "neon_dot", "neon"]),
        ("half thumb fastmult vfp edsp neon vfpv3", []),
    ],
)
def test_sets_of_an_aarch64_host(monkeypatch: pytest.MonkeyPatch, features: str, names: list[str]):
    """The last one is a processor of 32 bits."""
    cpuinfo = f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
    monkeypatch.setattr(Path, "read_text", lambda self: cpuinfo)
    assert [one.name for one in sets.host_sets()] == names
    chosen = sets.selected_set()
    assert (chosen.name if chosen else None) == (names[0] if names else None)
    assert ("and NEON" in str(support.why_not())) == (not names)
    with pytest.raises(ValueError, match="avx2 is not an instruction set of this host"):
        sets.select("avx2")


def test_no_kernels_at_all(monkeypatch: pytest.MonkeyPatch):
    """Those of sampling are compiled all the same."""
    host_with(monkeypatch, HASWELL)
    sets.select("none")
    assert sets.selected_set() is None and sets.target_set() is sets.AVX2
    assert support.why_not() == "--cpu-kernels is none"


def test_a_process_has_one_set(monkeypatch: pytest.MonkeyPatch):
    host_with(monkeypatch, ZEN_4)
    sets.select("avx2")
    assert sets.use_target_set() is sets.AVX2
    with pytest.raises(RuntimeError, match="kernels for avx2 already"):
        sets.select("avx512_bf16")
    sets.select("auto")
    assert sets.selected_set() is sets.AVX2


def test_a_set_that_the_host_lacks(monkeypatch: pytest.MonkeyPatch):
    """It can be compiled for, unless kernels are there for another one."""
    host_with(monkeypatch, HASWELL)
    sets.compile_for(sets.NEON)
    assert sets.use_target_set() is sets.NEON and sets.NEON.triple == "aarch64-unknown-linux-gnu"
    with pytest.raises(RuntimeError, match="kernels for neon already"):
        sets.compile_for(sets.AVX2)


def test_other_cpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "isa : rv64imafdcv\n")
    assert str(support.why_not()) == "the CPU lacks AVX2, FMA or F16C, and NEON"


def test_other_systems(monkeypatch: pytest.MonkeyPatch):
    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert "lacks" in str(support.why_not())


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch):
    host_with(monkeypatch, ZEN_4)
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert support.why_not() == "llvmlite is not installed"


def test_a_cpu_that_llvm_knows_less_of(monkeypatch: pytest.MonkeyPatch):
    """As in a virtual machine that hides a part of it."""
    from kernels.cpu.compiler import llvm as machine_code

    host_with(monkeypatch, ZEN_4)
    monkeypatch.setattr(machine_code, "host_features", lambda: {"avx2": True, "avx512bf16": False})
    assert support.why_not() == "LLVM does not see AVX512-BF16 in this CPU"


def test_llvm_knows_each_feature_that_a_set_asks_for():
    """Versions rename features: a name that LLVM has not would turn the kernels off, and skip their tests."""
    from kernels.cpu.compiler.llvm import host_features

    known = host_features()
    if "avx2" not in known:
        pytest.skip("LLVM reports the features of an x86-64 processor on one alone")
    asked = {name for one in sets.SETS if one.architecture == sets.X86_64 for name in one.features}
    assert asked - sets.BASELINE <= known.keys()
