"""Programs of the emulator: control flow, memory that is checked, and what lands late."""

import re

import pytest
import torch

from ptx_emulator.machine import Fault
from ptx_emulator.memory import GlobalMemory, MemoryFault
from ptx_snippets import run

LANES = torch.arange(32, dtype=torch.int32)
STORE = """
mad.wide.u32 %rd8, %r0, 4, %rd0;
st.global.b32 [%rd8], {{ {} }};
"""


def lanes(body: str, result: str, *tensors: torch.Tensor, **options: int) -> torch.Tensor:
    """What the register `result` of each thread is at the end."""
    out = torch.zeros(options.get("threads", 32), dtype=torch.int32)
    run(body + STORE.format(result), out, *tensors, **options)
    return out


def test_threads_take_both_ways_and_meet_again():
    body = """
    setp.lt.u32 %p1, %r0, 5;
    @%p1 bra $L__less;
    add.s32 %r1, %r0, 100;
    bra.uni $L__end;
    $L__less:
    mul.lo.s32 %r1, %r0, -3;
    $L__end:
    redux.sync.add.s32 %r2, %r1, -1;
    """
    each = torch.where(LANES < 5, LANES * -3, LANES + 100)
    assert (lanes(body, "%r1") == each).all()
    assert (lanes(body, "%r2") == each.sum()).all()


def test_a_loop_has_as_many_turns_as_each_thread_wants():
    body = """
    mov.b32 %r1, 0; mov.b32 %r2, 0;
    $L__again:
    add.s32 %r1, %r1, %r0;
    add.s32 %r2, %r2, 1;
    setp.le.u32 %p1, %r2, %r0;
    @%p1 bra $L__again;
    """
    assert (lanes(body, "%r1") == LANES * (LANES + 1)).all()


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1", LANES ^ 16),
        ("shfl.sync.idx.b32 %r1, %r0, 3, 31, -1", LANES * 0 + 3),
        ("shfl.sync.up.b32 %r1, %r0, 4, 0, -1", torch.where(LANES < 4, LANES, LANES - 4)),
        ("shr.s32 %r1, %r0, 40", LANES * 0),
        ("shl.b32 %r1, %r0, 33", LANES * 0),
        ("bfe.u32 %r1, %r0, 1, 3", (LANES >> 1) & 7),
        ("bfe.s32 %r1, %r0, 0, 3", ((LANES & 7) ^ 4) - 4),
        ("prmt.b32 %r1, %r0, %r0, 0x0321U", LANES << 24),
        ("div.s32 %r1, %r0, -7", -(LANES // 7)),
        ("cvt.rn.f32.s32 %r2, %r0; ex2.approx.ftz.f32 %r1, %r2", None),
        ("mul.hi.u32 %r1, %r0, 0x80000000", LANES >> 1),
    ],
)
def test_instructions(instruction: str, expected: torch.Tensor | None):
    found = lanes(instruction + ";", "%r1")
    if expected is None:
        assert (found.view(torch.float32) == torch.exp2(LANES.float())).all()
    else:
        assert (found == expected).all()


def test_a_comparison_with_nan_is_false_unless_unordered():
    for test, expected in [("ne", 0), ("neu", 1), ("lt", 0), ("geu", 1), ("num", 0)]:
        body = f"setp.{test}.f32 %p1, 0f7FC00000, 0f3F800000; selp.b32 %r1, 1, 0, %p1;"
        assert (lanes(body, "%r1") == expected).all(), test


def test_a_register_that_nothing_has_written_is_poison():
    assert (lanes("", "%r5") == -1).all()
    assert (lanes("", "%r5", poison=0x7E) == 0x7E7E7E7E).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("st.global.b32 [%rd0+124], %r0; st.global.b32 [%rd0+128], %r0;", "4 bytes beyond the end"),
        ("ld.global.b32 %r1, [%rd0+-4];", "no allocation|beyond the end"),
        ("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd0+8];", "16 bytes is misaligned"),
        ("st.shared.b32 [global_smem+1024], %r0;", "outside of the 1024 bytes"),
        ("st.shared.b32 [global_smem], %r0;", "two threads write different values"),
        (
            "shl.b32 %r1, %r0, 2; st.shared.b32 [%r1], %r0; ld.shared.b32 %r2, [global_smem+4];",
            "another thread has written",
        ),
        (
            "shl.b32 %r1, %r0, 2; st.shared.b32 [%r1], %r0; bar.sync 0; xor.b32 %r3, %r1, 4;"
            "ld.shared.b32 %r2, [%r3]; st.shared.b32 [%r1], %r2;",
            "another thread has read",
        ),
        (
            "shl.b32 %r1, %r0, 2; cvt.u64.u32 %rd1, %r1; add.s64 %rd2, %rd0, %rd1;"
            "cp.async.ca.shared.global [%r1], [%rd2], 4; cp.async.commit_group; ld.shared.b32 %r2, [%r1];",
            "before the copy to it was waited for",
        ),
        ("setp.lt.u32 %p1, %r0, 5; @%p1 redux.sync.add.s32 %r1, %r0, -1;", "only some threads of a warp"),
        ("frobnicate.s32 %r1, %r0;", "does not know frobnicate"),
        ("mov.b32 %r1, %r100;", "no register"),
    ],
)
def test_faults(body: str, message: str):
    """Each is an error or undefined on a GPU; the message says which instruction it was."""
    with pytest.raises(Fault, match=message) as caught:
        run(body, LANES.clone(), shared=1024)
    assert re.match(r"snippet, instruction \d+: \S+", str(caught.value))


def test_a_barrier_makes_what_is_written_visible():
    body = """
    shl.b32 %r1, %r0, 2;
    st.shared.b32 [%r1], %r0;
    bar.sync 0;
    xor.b32 %r2, %r1, 256;
    ld.shared.b32 %r3, [%r2];
    """
    assert (lanes(body, "%r3", shared=512, threads=128) == torch.arange(128) ^ 64).all()


def test_a_barrier_of_a_warp_is_one_for_its_threads():
    """Not for those of others; and what several threads of a warp have read one of them may write behind
    it, but not before."""
    write = "shl.b32 %r1, %r0, 2; st.shared.b32 [%r1], %r0; bar.warp.sync -1;"
    read = "xor.b32 %r2, %r1, {}; ld.shared.b32 %r3, [%r2];"
    settled = write + read.format(64)
    assert (lanes(settled, "%r3", shared=512, threads=128) == torch.arange(128) ^ 16).all()
    with pytest.raises(Fault, match="another thread has written"):
        lanes(write + read.format(128), "%r3", shared=512, threads=128)
    again = settled + "{}" + "st.shared.b32 [%r1], %r0;"
    lanes(again.format("bar.warp.sync -1;"), "%r3", shared=512, threads=128)
    with pytest.raises(Fault, match="another thread has read"):
        lanes(again.format(""), "%r3", shared=512, threads=128)
    with pytest.raises(Fault, match="only barriers of all threads of a warp"):
        lanes("bar.warp.sync 1;", "%r0")


def test_what_threads_of_several_warps_have_read_is_settled_by_no_barrier_of_theirs():
    """One access and two give the same."""
    read = "mov.b32 %r1, 0; ld.shared.b32 %r2, [%r1]; "
    twice = "setp.lt.u32 %p1, %r0, 32; mov.b32 %r1, 0; @%p1 ld.shared.b32 %r2, [%r1];"
    twice += "@!%p1 ld.shared.b32 %r2, [%r1];"
    for body in (read, twice):
        with pytest.raises(Fault, match="another thread has read"):
            lanes(body + "bar.warp.sync -1; st.shared.b32 [%r1], 7;", "%r2", shared=512, threads=64)


def test_copies_land_at_their_wait_and_not_before():
    """Two groups; the wait for all but one lands the first alone. What a copy does not read is zeros."""
    body = """
    shl.b32 %r1, %r0, 2;
    cvt.u64.u32 %rd2, %r1;
    add.s64 %rd3, %rd1, %rd2;
    cp.async.ca.shared.global [%r1], [%rd3], 4;
    cp.async.commit_group;
    mov.b32 %r4, 0;
    cp.async.ca.shared.global [%r1+128], [%rd3], 4, %r4;
    cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.b32 %r2, [%r1];
    """
    source = LANES * 7
    assert (lanes(body, "%r2", source, shared=256) == source).all()
    with pytest.raises(Fault, match="before the copy"):
        lanes(body + "ld.shared.b32 %r3, [%r1+128];", "%r3", source, shared=256)
    body += "cp.async.wait_group 0; ld.shared.b32 %r3, [%r1+128];"
    assert (lanes(body, "%r3", source, shared=256) == 0).all()


def test_two_programs_may_not_write_to_one_address():
    memory, data = GlobalMemory(), torch.zeros(4, dtype=torch.int32)
    memory.allow(data.data_ptr(), 16)
    where = torch.tensor([data.data_ptr()]).numpy().view("u8")
    memory.store(where, torch.tensor([[1, 0, 0, 0]], dtype=torch.uint8).numpy(), 0)
    with pytest.raises(MemoryFault, match="two programs"):
        memory.store(where, torch.tensor([[2, 0, 0, 0]], dtype=torch.uint8).numpy(), 1)
    with pytest.raises(MemoryFault, match="what program 0"):
        memory.load(where, 4, 1)
    memory.forget_accesses()
    assert memory.load(where, 4, 1)[0, 0] == 1
