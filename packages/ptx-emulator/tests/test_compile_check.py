"""What is read from a compiled kernel, on made-up pieces of it: loads, copies, products, sums, resources."""

from dataclasses import replace

import pytest
import torch
from triton.runtime import driver

from kernels.triton.capabilities import CAPABILITIES, capability_of
from ptx_emulator.compile_check import Compiled, _advice, _copies, _loads, _products, _sums, believing

PLAIN = Compiled("kernel", 90, {}, 4, 3, 64, 0, 0, "", 16, 0, [], [])


@pytest.mark.parametrize(
    ("instruction", "widths"),
    [
        ("ld.global.b32 { %r1 }, [ %rd1 + 0 ];", [4]),
        ("ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", [16]),
        ("ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];", [8]),
        ("ld.global.L1::evict_last.v2.b64 { %rd2, %rd3 }, [ %rd1 ];", [16]),
        ("@%p1 ld.global.b16 { %rs1 }, [ %rd1 ]; ld.global.b8 { %rs2 }, [ %rd1 ];", [2, 1]),
        ("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5]; st.global.v4.b32 [ %rd1 ], { %r1 };", []),
        ("ld.param.b64 %rd1, [kernel_param_0];", []),
    ],
)
def test_widths_of_loads(instruction: str, widths: list[int]):
    """Widths are bytes of one thread, of global memory alone."""
    assert _loads(instruction) == widths


@pytest.mark.parametrize(
    ("instruction", "widths"),
    [
        ("@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;", [16]),
        ("cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;", [4]),
        ("cp.async.ca.shared.global [ %r1 ], [ %rd1 ], 0x8; cp.async.cg.shared.global [%r1], [%rd1], 0x10;",
         [8, 16]),
        ("cp.async.commit_group; cp.async.wait_group 2;", []),
    ],
)  # fmt: skip
def test_widths_of_copies(instruction: str, widths: list[int]):
    assert _copies(instruction) == widths


@pytest.mark.parametrize(
    ("instruction", "family"),
    [
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 ...;", "wgmma"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ...;", "mma"),
        ("tcgen05.mma.cta_group::1.kind::f16 ...;", "tcgen05"),
        ("wgmma.fence.sync.aligned; fma.rn.f32 %f1, %f2, %f3, %f4;", ""),
        ("mma.sync...; wgmma.mma_async...;", "wgmma"),
    ],
)
def test_families_of_products(instruction: str, family: str):
    assert _products(instruction) == family


def test_advice():
    """Performance warnings of the assembler, each once; what else it says is no advice."""
    serialized = "(C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    log = f"ptxas info    : {serialized}\nptxas info    : Used 90 registers\nptxas info    : {serialized}\n"
    assert _advice(log) == [serialized] and _advice("ptxas info    : Used 90 registers\n") == []


TTGIR = """
#blocked = #ttg.blocked<{sizePerThread = [1, 4]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3}>
%1 = "tt.reduce"(%0) <{axis = 1 : i32}> ({
}) : (tensor<64x32xf32, #mma>) -> tensor<64xf32, #ttg.slice<{dim = 1, parent = #mma}>>
%2 = ttng.warp_group_dot %3, %4, %5 {inputPrecision = 0 : i32} : !a * !b -> tensor<64x32xf32, #mma>
%6 = tt.dot %7, %8, %9 : !a * !b -> tensor<16x16xf32, #blocked>
%7 = tt.dot %7, %8, %9 : !a * !b -> tensor<16x16xf32, #blocked>
%8 = "tt.reduce"(%0) ({
}) : (tensor<128xf32, #unnamed>) -> f32
"""


def test_sums_have_the_layout_of_what_they_add():
    """Each kind once; a layout without a name stays as it is."""
    assert _sums(TTGIR) == [
        "dot 16x16xf32 #ttg.blocked<{sizePerThread = [1, 4]}>",
        "dot 64x32xf32 #ttg.nvidia_mma<{versionMajor = 3}>",
        "reduce 128xf32 #unnamed",
        "reduce 64x32xf32 #ttg.nvidia_mma<{versionMajor = 3}>",
    ]
    assert _sums("") == []


def test_another_layout_is_another_sum():
    assert _sums(TTGIR.replace("sizePerThread = [1, 4]", "sizePerThread = [4, 1]")) != _sums(TTGIR)


def test_what_fits():
    """Neither a spill nor more shared memory than a program may have."""
    limit = CAPABILITIES[90].shared_limit
    assert PLAIN.fits and replace(PLAIN, shared=limit).fits
    assert not replace(PLAIN, shared=limit + 1).fits
    assert not replace(PLAIN, spilled=4).fits
    assert not replace(PLAIN, shared=limit, capability=86).fits


def test_how_many_programs_fit():
    assert PLAIN.programs == 8  # registers
    assert replace(PLAIN, registers=32).programs == 16  # warps
    assert replace(PLAIN, shared=100 << 10).programs == 2
    assert replace(PLAIN, shared=90 << 10, capability=86).programs == 1


def test_triton_believes_in_a_device_within_the_context_alone():
    """Launchers choose sizes for it, too; also where the body fails."""
    host, before = torch.device("cpu"), getattr(driver, "_active", None)
    assumed = capability_of(host)
    for capability in (80, 120):
        with believing(capability) as limits:
            target = driver.active.get_current_target()
            assert (target.backend, target.arch, target.warp_size) == ("cuda", capability, 32)
            assert driver.active.get_current_device() == capability
            assert driver.active.get_current_stream() == 0
            assert limits is capability_of(host) is CAPABILITIES[capability]
    with pytest.raises(ValueError, match="planted"), believing(90):
        raise ValueError("planted")
    assert getattr(driver, "_active", None) is before and capability_of(host) is assumed
