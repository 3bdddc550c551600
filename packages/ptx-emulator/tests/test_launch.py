"""Launches on the emulator: which programs there are, what they get, and what they may reach."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ptx_emulator.launch import EmulatedLaunch, Emulator
from ptx_emulator.machine import Fault

HEAD = """
.version 8.7
.target sm_90a
.extern .shared .align 16 .b8 global_smem[];
.visible .entry noted(
  .param .u64 .ptr .global .align 1 noted_param_0, .param .u32 noted_param_1, .param .f32 noted_param_2,
  .param .u64 .ptr .global .align 1 noted_param_3, .param .u64 .ptr .global .align 1 noted_param_4
)
.reqntid 32
{
.reg .pred %p<3>; .reg .b32 %r<19>; .reg .b64 %rd<9>;
ld.param.b64 %rd0, [noted_param_0]; ld.param.b32 %r10, [noted_param_1]; ld.param.b32 %r11, [noted_param_2];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y; mov.u32 %r6, %nctaid.z;
mad.lo.s32 %r7, %r3, %r5, %r2; mad.lo.s32 %r7, %r7, %r4, %r1;
mad.wide.u32 %rd1, %r7, 4, %rd0;
mov.u32 %r0, %tid.x; setp.eq.u32 %p1, %r0, 0;
"""
"""%r7 is the number of the program in the grid, x first; %rd1 its place in the first tensor, and %p1 is its
first thread."""


def binary(body: str, shared: int = 0) -> Any:
    """Returns what Triton's compiler gives: code and what it takes."""
    ptx = f"{HEAD}{body}\nret;\n}}"
    return SimpleNamespace(asm={"ptx": ptx}, metadata=SimpleNamespace(shared=shared))


NUMBER = binary("@%p1 st.global.b32 [%rd1], %r7;")


def run(
    kernel: Any, grid: tuple[int, ...], *more: Any, size: int = 8, emulator: Emulator | None = None
) -> list[int]:
    """What programs leave in a tensor of -1."""
    out = torch.full((size,), -1, dtype=torch.int32)
    (Emulator() if emulator is None else emulator).launch(kernel, [out, *more], grid)
    return out.tolist()


@pytest.mark.parametrize("grid", [(6,), (3, 2), (1, 2, 3), (6, 1, 1)])
def test_a_grid_has_each_program_once(grid: tuple[int, ...]):
    emulator = Emulator()
    assert run(NUMBER, grid, emulator=emulator) == [0, 1, 2, 3, 4, 5, -1, -1]
    [launch] = emulator.launches
    assert (launch.name, launch.programs) == ("noted", 6)


@pytest.mark.parametrize("grid", [(0,), (4, 0), (0, 3, 2)])
def test_a_grid_of_nothing_runs_nothing(grid: tuple[int, ...]):
    emulator = Emulator()
    assert run(NUMBER, grid, emulator=emulator) == [-1] * 8
    assert emulator.launches == [EmulatedLaunch("noted", 0, 0)]


@pytest.mark.parametrize("axis", range(3))
def test_programs_know_their_place_and_the_grid(axis: int):
    """Along each of three axes: the place, then the size."""
    for register, expected in (
        (f"%r{1 + axis}", [(0, 1), (0, 0, 1, 1, 2, 2), (0,) * 6][axis]),
        (f"%r{4 + axis}", [(2,) * 6, (3,) * 6, (1,) * 6][axis]),
    ):
        found = run(binary(f"@%p1 st.global.b32 [%rd1], {register};"), (2, 3), size=6)
        assert found == list(expected * (6 // len(expected)))


def test_instructions_are_counted():
    """All programs count, with those that no thread was active for."""
    emulator = Emulator()
    run(NUMBER, (1,), emulator=emulator)
    run(NUMBER, (4,), emulator=emulator)
    first, second = (launch.instructions for launch in emulator.launches)
    assert first > 5 and second == 4 * first


def test_numbers_and_addresses_are_arguments():
    """Integers with a sign, floats by their bits; what Triton adds for itself is 0."""
    body = "ld.param.b64 %rd2, [noted_param_4]; cvt.u32.u64 %r12, %rd2;"
    stores = "".join(f"@%p1 st.global.b32 [%rd0+{4 * n}], %r{10 + n};" for n in range(3))
    assert run(binary(body + stores), (1,), -5, 1.5, size=4) == [-5, 0x3FC00000, 0, -1]


def test_a_program_must_not_read_what_another_one_writes():
    """The order in which they run does not matter: after it, and before it too. Its own it may."""
    read = binary("@%p1 st.global.b32 [%rd1], %r7; @%p1 ld.global.b32 %r12, [%rd0];")
    for reverse, message in ((False, "what program 0 of the same launch has written"), (True, "has read")):
        with pytest.raises(Fault, match=message):
            run(read, (2,), emulator=Emulator(reverse=reverse))
    assert run(read, (1,)) == [0, *[-1] * 7]


def test_the_order_of_programs_shows_where_they_depend_on_it():
    """Each takes the next number: an atomic addition, which is no fault, and no order either."""
    take = binary("@%p1 atom.global.gpu.relaxed.add.u32 %r12, [%rd0], 1; @%p1 st.global.b32 [%rd1+4], %r12;")
    found = []
    for reverse in (False, True):
        out = torch.zeros(5, dtype=torch.int32)
        Emulator(reverse=reverse).launch(take, [out], (4,))
        found.append(out.tolist())
    assert found == [[4, 0, 1, 2, 3], [4, 3, 2, 1, 0]]


def test_a_next_launch_reads_what_the_last_one_wrote():
    """The same emulator runs other programs."""
    emulator, out = Emulator(), torch.zeros(4, dtype=torch.int32)
    emulator.launch(NUMBER, [out], (4,))
    step = "xor.b32 %r8, %r7, 1; mad.wide.u32 %rd2, %r8, 4, %rd0; ld.param.b64 %rd3, [noted_param_3];"
    copy = binary(step + "mad.wide.u32 %rd3, %r7, 4, %rd3; @%p1 ld.global.b32 %r12, [%rd2];"
                  "@%p1 st.global.b32 [%rd3], %r12;")  # fmt: skip
    target = torch.zeros(4, dtype=torch.int32)
    emulator.launch(copy, [out, 0, 0.0, target], (4,))
    assert target.tolist() == [1, 0, 3, 2] and len(emulator.launches) == 2


def test_memory_that_is_no_argument_is_not_reached_unless_it_is_allowed():
    """A tensor by whose address something else was computed."""
    hidden, out = torch.full((4,), 7, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    read = binary("ld.param.b64 %rd3, [noted_param_3]; @%p1 ld.global.b32 %r12, [%rd3+4];"
                  "@%p1 st.global.b32 [%rd1], %r12;")  # fmt: skip
    emulator = Emulator()
    with pytest.raises(Fault, match="no allocation|beyond the end"):
        emulator.launch(read, [out, 0, 0.0, hidden.data_ptr()], (1,))
    emulator.allow(hidden)
    emulator.launch(read, [out, 0, 0.0, hidden.data_ptr()], (1,))
    assert out[0] == 7


def test_a_view_reaches_all_of_its_storage():
    """The same holds on a device: strided rows of a wider tensor."""
    storage = torch.full((8,), -1, dtype=torch.int32)
    Emulator().launch(NUMBER, [storage[4:]], (4,))
    assert storage.tolist() == [-1] * 4 + [0, 1, 2, 3]
    with pytest.raises(Fault, match="4 bytes beyond the end of an allocation of 32 bytes"):
        Emulator().launch(NUMBER, [storage[4:]], (5,))


def test_a_tensor_of_nothing_is_an_argument():
    out = torch.full((8,), -1, dtype=torch.int32)
    Emulator().launch(NUMBER, [out, 0, 0.0, torch.empty(0)], (1,))
    assert out[0] == 0


def test_registers_and_shared_memory_begin_as_poison():
    """Each program begins anew: what one leaves there the next does not see."""
    body = "shl.b32 %r8, %r0, 2; ld.shared.b32 %r12, [%r8]; @%p1 st.global.b32 [%rd1], %r12;"
    dirty = binary(body + "bar.sync 0; st.shared.b32 [%r8], 5;", 128)
    assert run(dirty, (3,), size=3) == [-1] * 3
    assert run(dirty, (3,), size=3, emulator=Emulator(poison=0x7E)) == [0x7E7E7E7E] * 3
    never = binary("@%p1 st.global.b32 [%rd1], %r18;")
    assert run(never, (2,), size=2, emulator=Emulator(poison=0x11)) == [0x11111111] * 2


def test_shared_memory_is_as_large_as_the_kernel_says():
    body = "shl.b32 %r8, %r0, 2; st.shared.b32 [%r8], %r0;"
    run(binary(body, 128), (1,))
    with pytest.raises(Fault, match="outside of the 124 bytes of shared memory"):
        run(binary(body, 124), (1,))


def test_code_is_read_once_and_may_be_changed_before():
    """A test that plants a bug changes it."""
    edits = []

    def edit(ptx: str) -> str:
        edits.append(ptx)
        return ptx.replace("st.global.b32 [%rd1], %r7", "st.global.b32 [%rd1], 9")

    emulator = Emulator(edit=edit)
    for _ in range(2):
        assert run(NUMBER, (2,), size=3, emulator=emulator) == [9, 9, -1]
    assert edits == [NUMBER.asm["ptx"]]


def test_too_many_arguments_are_refused():
    with pytest.raises(ValueError, match="zip"):
        run(NUMBER, (1,), 0, 0.0, 0, 0, 0)
