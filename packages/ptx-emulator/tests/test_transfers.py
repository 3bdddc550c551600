"""Loads, stores, parameters and atomic operations of single threads on the emulator."""

from typing import Any

import numpy as np
import pytest
import torch

from ptx_emulator.machine import Fault, run_program
from ptx_emulator.memory import GlobalMemory, SharedMemory
from ptx_emulator.parser import parse
from ptx_emulator.program import EmulatedProgram
from ptx_emulator.threads import Threads
from ptx_snippets import run

LANES = np.arange(32)
COPY = """
mad.wide.u32 %rd3, %r0, {step}, %rd0; mad.wide.u32 %rd4, %r0, {step}, %rd1;
ld.global{vector}.b{bits} {names}, [%rd3];
mul.lo.s32 %r61, %r0, {step};
st.shared{vector}.b{bits} [%r61], {names};
bar.sync 0;
ld.shared{vector}.b{bits} {names}, [%r61];
st.global{vector}.b{bits} [%rd4], {names};
"""
REGISTERS = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}


@pytest.mark.parametrize(
    ("bits", "count"),
    [(bits, count) for bits in (8, 16, 32, 64) for count in (1, 2, 4) if bits * count <= 128],
)
def test_vectors_go_through_registers_and_shared_memory(bits: int, count: int):
    step = bits // 8 * count
    names = [f"{REGISTERS[bits]}{n + 5 if bits > 16 else n + 1}" for n in range(count)]
    source = torch.from_numpy(np.random.default_rng(bits).integers(0, 256, 32 * step, dtype=np.uint8))
    target = torch.zeros_like(source)
    body = COPY.format(
        step=step,
        bits=bits,
        vector=f".v{count}" if count > 1 else "",
        names=f"{{{', '.join(names)}}}" if count > 1 else names[0],
    )
    run(body, source, target, shared=32 * step)
    assert (target == source).all()


@pytest.mark.parametrize(
    ("kind", "expected"), [("s8", -2), ("u8", 254), ("b8", 254), ("s16", -2), ("u16", 65534)]
)
def test_a_short_load_is_extended_as_its_type_says(kind: str, expected: int):
    source = torch.full((32,), -2, dtype=torch.int16)
    out = torch.zeros(32, dtype=torch.int32)
    run(
        f"mad.wide.u32 %rd3, %r0, 4, %rd1; ld.global.{kind} %r1, [%rd0]; st.global.b32 [%rd3], %r1;",
        source,
        out,
    )
    assert (out == expected).all()


def test_a_masked_transfer_leaves_the_others_alone():
    """Registers, shared and global memory; what is at a masked address does not matter."""
    out, source = torch.full((32,), -1, dtype=torch.int32), torch.arange(16, dtype=torch.int32) * 3
    body = """
    mad.wide.u32 %rd3, %r0, 4, %rd0; mad.wide.u32 %rd4, %r0, 4, %rd1; shl.b32 %r9, %r0, 2;
    setp.lt.u32 %p1, %r0, 16;
    mov.b32 %r1, 7; mov.b32 %r2, 8;
    @%p1 ld.global.b32 %r1, [%rd4];
    @%p1 st.shared.b32 [%r9], %r1;
    @%p1 ld.shared.b32 %r2, [%r9];
    add.s32 %r3, %r1, %r2;
    @!%p1 st.global.b32 [%rd3], %r3;
    @%p1 st.global.b32 [%rd3], %r2;
    """
    run(body, out, source, shared=64)
    assert (out.numpy() == np.where(LANES < 16, LANES * 3, 15)).all()


ATOMICS: list[tuple[str, list[int], int, list[int], list[int]]] = [
    # opcode, each lane's operand, what is there first, what lanes see, what is there at last
    ("add.u32", [5, 7, -1], 10, [10, 15, 22], [21]),
    ("add.s32", [5, 2**31 - 1, 1], 10, [10, 15, -(2**31) + 14], [-(2**31) + 15]),
    ("max.s32", [-3, -9, 4], -5, [-5, -3, -3], [4]),
    ("min.s32", [-3, -9, 4], -5, [-5, -5, -9], [-9]),
    ("max.u32", [3, -1, 4], 5, [5, 5, -1], [-1]),
    ("or.b32", [1, 4, 4], 8, [8, 9, 13], [13]),
    ("exch.b32", [-1, 2, 3], 8, [8, -1, 2], [3]),
]


@pytest.mark.parametrize(
    ("opcode", "operands", "first", "seen", "last"), ATOMICS, ids=[row[0] for row in ATOMICS]
)
def test_atomic_operations(opcode: str, operands: list[int], first: int, seen: list[int], last: list[int]):
    """Three threads on one number, in ascending order; the others do nothing, and keep their register."""
    number, out = torch.tensor([first], dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    given = torch.zeros(32, dtype=torch.int32)
    given[:3] = torch.tensor(operands)
    body = f"""
    mad.wide.u32 %rd3, %r0, 4, %rd1; mad.wide.u32 %rd4, %r0, 4, %rd2;
    ld.global.b32 %r1, [%rd3]; mov.b32 %r2, 77; setp.lt.u32 %p1, %r0, 3;
    @%p1 atom.global.gpu.relaxed.{opcode} %r2, [%rd0], %r1;
    st.global.b32 [%rd4], %r2;
    """
    run(body, number, given, out)
    assert number.tolist() == last and out[:3].tolist() == seen and (out[3:] == 77).all()


def test_atomic_operations_of_64_bits_and_of_every_thread():
    number = torch.tensor([1 << 40], dtype=torch.int64)
    run("cvt.u64.u32 %rd3, %r0; atom.global.gpu.relaxed.add.u64 %rd4, [%rd0], %rd3;", number, threads=64)
    assert number.item() == (1 << 40) + sum(range(64))


@pytest.mark.parametrize(
    "body",
    [
        "atom.shared.add.u32 %r1, [global_smem], %r0;",
        "atom.global.gpu.relaxed.add.f32 %r1, [%rd0], %r0;",
        "atom.global.gpu.relaxed.cas.b32 %r1, [%rd0], %r0, %r0;",
        "atom.global.gpu.relaxed.inc.u32 %r1, [%rd0], %r0;",
        "ld.local.b32 %r1, [%r0];",
        "st.local.b32 [%r0], %r0;",
        "ld.param.b32 %r1, [nothing];",
        "ld.global.b32 %r1, %rd0;",
    ],
)
def test_transfers_that_are_not_known(body: str):
    with pytest.raises(Fault, match="not known|no parameter|no address"):
        run(body, torch.zeros(32, dtype=torch.int32), shared=64)


def parameters(loads: str, values: dict[str, Any]) -> Threads:
    """The registers after a kernel has loaded its parameters."""
    declared = ", ".join(f".param .b64 {name}" for name in values)
    kernel = parse(
        f".target sm_90a\n.entry k({declared})\n.reqntid 32\n{{ .reg .b16 %rs<3>; .reg .b32 %r<5>; "
        f".reg .b64 %rd<5>;\n{loads}\nret;\n}}"
    )
    threads = Threads(32, kernel.registers, 0xFF, (4, 5, 6), (7, 8, 9))
    copies = np.zeros(32, np.int64)
    shared = SharedMemory(0, 0)
    run_program(EmulatedProgram(kernel, 0, threads, GlobalMemory(), shared, values, copies))
    return threads


def test_parameters_are_numbers_of_their_type():
    loads = "ld.param.b64 %rd1, [a]; ld.param.b32 %r1, [b]; ld.param.f32 %r2, [c]; ld.param.s32 %rd2, [b];"
    threads = parameters(loads, {"a": (1 << 63) + 5, "b": -2, "c": 0.1})
    assert (threads.read("%rd1", "u64") == (1 << 63) + 5).all()
    assert (threads.read("%r1", "s32") == -2).all()
    assert (threads.read("%r2", "f32") == np.float32(0.1)).all()
    assert (threads.read("%rd2", "s64") == -2).all()


def test_special_registers():
    loads = "; ".join(
        f"mov.u32 %r{n}, {name}" for n, name in enumerate(("%ctaid.x", "%ctaid.y", "%ctaid.z", "%laneid"))
    )
    threads = parameters(f"{loads}; mov.u32 %r4, %nctaid.y;", {})
    assert [threads.read(f"%r{n}", "u32")[3] for n in range(5)] == [4, 5, 6, 3, 8]
    assert (Threads(96, {}, 0, (0, 0, 0), (1, 1, 1)).read("%laneid", "u32") == np.arange(96) % 32).all()


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("0f3FC00000", "f32", 1.5),
        ("0F3FC00000", "f64", 1.5),
        ("0d3FF8000000000000", "f64", 1.5),
        ("0D3FF8000000000000", "f32", 1.5),
        ("0f3FC00000", "b32", 0x3FC00000),
        ("0d3FF8000000000000", "b64", 0x3FF8000000000000),
        ("0x7FU", "u32", 127),
        ("-1", "u16", 65535),
        ("-1", "s64", -1),
        ("70000", "s16", 4464),
        ("1065353216", "f32", 1.0),
        ("0x3C00", "f16", 1.0),
        ("1", "pred", True),
        ("0", "pred", False),
    ],
)
def test_immediates(text: str, kind: str, expected: float):
    """Floats are written by their bits, and integers wrap to the width."""
    assert (Threads(2, {}, 0, (0, 0, 0), (1, 1, 1)).read(text, kind) == expected).all()


def test_registers_of_other_widths():
    """A wider register gives its lower bits; a narrower value is extended; predicates are bits."""
    threads = Threads(2, {"%rd1": 64, "%r1": 32, "%rs1": 16, "%p1": 1}, 0, (0, 0, 0), (1, 1, 1))
    threads.write("%rd1", np.array([-5, 1 << 33], np.int64), None)
    assert threads.read("%rd1", "s32").tolist() == [-5, 0]
    threads.write("%rd1", np.array([-5, 3], np.int32), None, signed=True)
    assert threads.read("%rd1", "s64").tolist() == [-5, 3]
    threads.write("%rd1", np.array([-5, 3], np.int32), None)
    assert threads.read("%rd1", "s64").tolist() == [(1 << 32) - 5, 3]
    threads.write("%p1", np.array([True, False]), None)
    assert threads.read("%p1", "u32").tolist() == [1, 0]
    threads.write("%p1", np.array([False, False]), np.array([False, True]))
    assert threads.read("%p1", "pred").tolist() == [True, False]
    threads.write("_", np.array([1, 1]), None)  # a result that is not wanted
