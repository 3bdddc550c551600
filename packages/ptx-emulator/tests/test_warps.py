"""Instructions of whole warps on the emulator: shuffles, reductions and matrices, by two warps."""

import numpy as np
import pytest
import torch

from ptx_emulator.machine import Fault
from ptx_snippets import run

LANE = np.arange(64) % 32
FIRST = np.arange(64) - LANE
"""The first thread of each one's warp."""


def results(body: str, result: str = "%r1", guard: str = "") -> np.ndarray:
    """What each of 64 threads has at the end; %r0 is its number."""
    out = torch.zeros(64, dtype=torch.int32)
    run(f"{body} mad.wide.u32 %rd8, %r0, 4, %rd0; {guard} st.global.b32 [%rd8], {result};", out, threads=64)
    return out.numpy()


@pytest.mark.parametrize("by", [0, 1, 5, 16, 31])
def test_shuffles_stay_within_their_warp(by: int):
    """A lane that would read beyond the end of the warp keeps its own value."""
    expected = {
        "bfly": (31, LANE ^ by),
        "idx": (31, LANE * 0 + by),
        "up": (0, np.where(by <= LANE, LANE - by, LANE)),
        "down": (31, np.where(LANE + by <= 31, LANE + by, LANE)),
    }
    for mode, (clamp, lane) in expected.items():
        found = results(f"shfl.sync.{mode}.b32 %r1, %r0, {by}, {clamp}, -1;")
        assert (found == FIRST + lane).all(), mode


def test_a_lane_may_be_another_one_for_each():
    body = "sub.s32 %r2, 31, %r0; shfl.sync.idx.b32 %r1, %r0, %r2, 31, 0xffffffff;"
    assert (results(body) == FIRST + 31 - LANE).all()


VALUES = "mul.lo.s32 %r2, %r0, -5; add.s32 %r2, %r2, 70;"
EACH = (np.arange(64) * -5 + 70).reshape(2, 32)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.s32", EACH.sum(axis=1)),
        ("add.u32", EACH.sum(axis=1)),
        ("min.s32", EACH.min(axis=1)),
        ("max.s32", EACH.max(axis=1)),
        ("max.u32", EACH.astype(np.uint32).max(axis=1).astype(np.int32)),
        ("min.u32", EACH.astype(np.uint32).min(axis=1).astype(np.int32)),
    ],
)
def test_reductions_are_those_of_each_warp(operation: str, expected: np.ndarray):
    found = results(f"{VALUES} redux.sync.{operation} %r1, %r2, -1;")
    assert (found == np.repeat(expected, 32)).all()


def test_a_reduction_of_floats_leaves_nan_out():
    body = """
    cvt.rn.f32.s32 %r2, %r0; setp.eq.u32 %p1, %r0, 3; mov.b32 %r3, 0f7FC00000;
    selp.b32 %r2, %r3, %r2, %p1; redux.sync.max.f32 %r4, %r2, -1; cvt.rzi.s32.f32 %r1, %r4;
    """
    assert (results(body) == np.repeat([31, 63], 32)).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("shfl.sync.bfly.b32 %r1, %r0, 1, 15, -1;", "parts of a warp"),
        ("shfl.sync.up.b32 %r1, %r0, 1, 31, -1;", "parts of a warp"),
        ("shfl.sync.bfly.b32 %r1, %r0, 1, 7199, -1;", "parts of a warp"),
        ("shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff;", "parts of a warp"),
        ("shfl.sync.any.b32 %r1, %r0, 1, 31, -1;", "shfl.any is not known"),
        ("redux.sync.add.s32 %r1, %r0, 15;", "some lanes"),
        ("redux.sync.and.b32 %r1, %r0, -1;", "reduction is not known"),
        ("redux.sync.max.NaN.f32 %r1, %r0, -1;", "reduction is not known"),
        ("setp.gt.u32 %p1, %r0, 40; @%p1 shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;", "only some threads"),
        ("setp.gt.u32 %p1, %r0, 62; @%p1 bar.warp.sync -1;", "only some threads"),
        (
            "setp.gt.u32 %p1, %r0, 40; @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r3];",
            "only some",
        ),
        ("setp.gt.u32 %p1, %r0, 0; @%p1 stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r1};", "only some"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r1, [%r3];", "list of registers"),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r1,%r2,%r3,%r4}, {%r1,%r2}, {%r1}, "
            "{%r1,%r2,%r3,%r4};",
            "mma is not known",
        ),
        (
            "setp.gt.u32 %p1, %r0, 40; @%p1 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, {%r1,%r2}, {%r1,%r2,%r3,%r4};",
            "only some threads",
        ),
    ],
)
def test_what_is_no_instruction_of_a_whole_warp(body: str, message: str):
    with pytest.raises(Fault, match=message):
        results(f"mov.b32 %r3, 0; {body}")


def test_one_warp_of_two_may_run_an_instruction_alone():
    """The other one's registers stay."""
    body = f"{VALUES} mov.b32 %r1, 9; setp.gt.u32 %p1, %r0, 31; @%p1 redux.sync.add.s32 %r1, %r2, -1;"
    assert (results(body) == np.where(np.arange(64) > 31, EACH[1].sum(), 9)).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("stored", ["", ".trans"])
def test_matrices_of_two_warps_are_stored_as_they_are_loaded(count: int, stored: str):
    """The second warp's behind those of the first. Stored and loaded in the same way they are what they
    were; in two ways, transposed. Rows are addressed in reverse, so that addresses count."""
    names = ",".join(f"%r{n + 1}" for n in range(count))
    back = ",".join(f"%r{n + 11}" for n in range(count))
    out = torch.zeros((64, 8), dtype=torch.int32)
    stores = " ".join(
        f"st.global.b32 [%rd8+{4 * n}], %r{n + 11}; st.global.b32 [%rd8+{4 * n + 16}], %r{n + 1};"
        for n in range(count)
    )
    values = " ".join(f"mad.lo.s32 %r{n + 1}, %r0, 65539, {7 * n};" for n in range(count))
    run(
        f"""
        {values}
        shr.u32 %r20, %r0, 5; and.b32 %r21, %r0, 31; sub.s32 %r21, 31, %r21;
        mul.lo.s32 %r22, %r20, 512; mad.lo.s32 %r22, %r21, 16, %r22;
        stmatrix.sync.aligned.m8n8.x{count}{stored}.shared.b16 [%r22], {{{names}}};
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{back}}}, [%r22];
        mad.wide.u32 %rd8, %r0, 32, %rd0;
        {stores}
        """,
        out,
        threads=64,
        shared=1024,
    )
    found = out.numpy().view(np.int16).reshape(2, 32, 2, 4, 2)[:, :, :, :count]
    rows, pair = np.arange(32) // 4, 2 * (np.arange(32) % 4)
    for warp in (0, 1):
        for n in range(count):
            matrices = np.zeros((2, 8, 8), np.int16)
            for which in (0, 1):
                for half in (0, 1):
                    matrices[which, rows, pair + half] = found[warp, :, which, n, half]
            loaded, written = matrices
            assert len(np.unique(written)) > 32
            assert (loaded == (written.T if stored else written)).all()


def test_a_warp_alone_loads_matrices_from_its_own_addresses():
    """The addresses of the warp that does not take part do not matter."""
    body = """
    mov.b32 %r1, -1; shl.b32 %r2, %r0, 4; setp.gt.u32 %p1, %r0, 31; mov.b32 %r5, 5;
    @!%p1 mov.b32 %r2, 99999;
    @%p1 st.shared.v4.b32 [%r2], {%r0, %r0, %r0, %r0};
    bar.warp.sync -1;
    @%p1 ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r5}, [%r2];
    mad.wide.u32 %rd8, %r0, 8, %rd0; st.global.v2.b32 [%rd8], {%r1, %r5};
    """
    out = torch.zeros((64, 2), dtype=torch.int32)
    run(body, out, threads=64, shared=1024)
    lane = np.arange(32)
    assert (out.numpy()[:32] == [-1, 5]).all()
    assert (out.numpy()[32:] == np.stack([32 + lane // 4, 40 + lane // 4], axis=1)).all()
