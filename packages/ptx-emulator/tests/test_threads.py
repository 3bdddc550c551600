"""Registers of a program's threads: widths, signs, poison, immediates, and products that use them."""

from typing import Any

import numpy as np
import pytest

from ptx_emulator.parser import PtxError
from ptx_emulator.threads import Threads, immediate

COUNT = 64
WIDTHS = {"%r1": 32, "%r2": 32, "%rd1": 64, "%rs1": 16, "%p1": 1}


def threads(poison: int = 0xAB) -> Threads:
    return Threads(COUNT, WIDTHS, poison, program=(1, 0, 7), grid=(4, 5, 8))


def every(value: Any, kind: str) -> np.ndarray:
    return np.full(COUNT, value, kind)


def test_what_each_thread_knows_of_itself_and_of_the_grid():
    of = threads()
    assert of.read("%tid.x", "u32").tolist() == list(range(64))
    assert of.read("%laneid", "u32").tolist() == [*range(32), *range(32)]
    assert (of.read("%ntid.x", "u32") == 64).all()
    for axis, place, size in (("x", 1, 4), ("y", 0, 5), ("z", 7, 8)):
        assert (of.read(f"%ctaid.{axis}", "u32") == place).all()
        assert (of.read(f"%nctaid.{axis}", "u32") == size).all()


@pytest.mark.parametrize(("poison", "bit"), [(0xAB, True), (0xAA, False)])
def test_what_nothing_has_written_is_poison(poison: int, bit: bool):
    """Every byte of each width is; of a predicate its lowest bit."""
    of = threads(poison)
    for name, width in (("%rs1", 16), ("%r1", 32), ("%rd1", 64)):
        assert (of.bits(name) == int.from_bytes(bytes([poison]) * (width // 8), "little")).all()
    assert of.bits("%p1").dtype == np.bool_ and (of.bits("%p1") == bit).all()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("u32", 0xC1280000),
        ("b32", 0xC1280000),
        ("s32", 0xC1280000 - (1 << 32)),
        ("f32", -10.5),
        ("u16", 0),
        ("u8", 0),
        ("pred", True),
    ],
)
def test_a_register_is_read_as_the_type_that_is_asked_for(kind: str, value: float):
    of = threads()
    of.write("%r1", every(0xC1280000, "u4"), None)
    assert (of.read("%r1", kind) == value).all() and len(of.read("%r1", kind)) == COUNT


def test_a_narrower_type_has_the_lower_bits():
    of = threads()
    of.write("%rd1", np.arange(COUNT, dtype="u8") + 0x1234_5678_9ABC_DE00, None)
    assert of.read("%rd1", "u16").tolist() == [0xDE00 + thread for thread in range(COUNT)]
    assert of.read("%rd1", "s32").tolist() == [0x9ABC_DE00 - (1 << 32) + thread for thread in range(COUNT)]
    assert of.read("%rd1", "u8").tolist() == list(range(COUNT))


@pytest.mark.parametrize(
    ("value", "kind", "signed", "bits"),
    [
        (-2, "i2", True, (1 << 64) - 2),
        (0xFFFE, "u2", False, 0xFFFE),
        (-2, "i2", False, 0xFFFE),
        (5, "i2", True, 5),
        (-1, "i8", True, (1 << 64) - 1),
        (1.0, "f4", False, 0x3F800000),
    ],
)
def test_a_narrower_value_is_extended(value: float, kind: str, signed: bool, bits: int):
    """Its sign extends it, or zeros."""
    of = threads()
    of.write("%rd1", every(value, kind), None, signed)
    assert of.bits("%rd1").dtype == np.uint64 and (of.bits("%rd1") == bits).all()


def test_threads_that_are_not_active_keep_what_they_have():
    of, active = threads(), np.arange(COUNT) % 3 == 0
    of.write("%r1", every(7, "u4"), None)
    before = of.bits("%r1")
    of.write("%r1", every(9, "u4"), active)
    assert of.bits("%r1").tolist() == [9 if thread % 3 == 0 else 7 for thread in range(COUNT)]
    assert (before == 7).all(), "arrays are not changed in place"
    of.write("%p1", every(False, "?"), None)
    of.write("%p1", every(True, "?"), active)
    assert (of.read("%p1", "pred") == active).all()
    of.write("_", every(1, "u4"), None)  # goes nowhere


def test_registers_that_a_kernel_does_not_have():
    of = threads()
    for use in (lambda: of.bits("%r9"), lambda: of.write("%r9", every(1, "u4"), None)):
        with pytest.raises(PtxError, match="%r9 is no register of this kernel"):
            use()


def test_registers_of_a_product_on_its_way():
    """What it writes is not read, and not written; what it reads is not written."""
    of = threads()
    of.write("%r1", every(3, "u4"), None)
    of.write("%r2", every(4, "u4"), None)
    of.in_flight, of.held = {"%r1"}, {"%r2"}
    with pytest.raises(PtxError, match="%r1 is read before the product"):
        of.read("%r1", "u32")
    assert (of.peek("%r1") == 3).all() and (of.read("%r2", "u32") == 4).all()
    for name in ("%r1", "%r2"):
        with pytest.raises(PtxError, match=f"{name} is written while a product"):
            of.write(name, every(1, "u4"), None)
    lanes = np.arange(COUNT) < 32
    of.land("%r1", every(8, "u4"), lanes)
    assert of.peek("%r1").tolist() == [8] * 32 + [3] * 32
    of.land("%rs1", every(6, "u2"), lanes)
    assert (of.peek("%rs1")[:32] == 6).all(), "one that nothing has written"


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0f3F800000", "f4", 1.0),
        ("0FC1280000", "f4", -10.5),
        ("0d4000000000000000", "f8", 2.0),
        ("0f3F800000", "u4", 0x3F800000),
        ("0f3F800000", "u8", 0x3F800000),
        ("0d3FF0000000000000", "u8", 0x3FF0000000000000),
        ("0f3F800000", "f8", 1.0),
        ("17", "u4", 17),
        ("-1", "u2", 0xFFFF),
        ("-1", "i4", -1),
        ("0x1FF", "u1", 0xFF),
        ("300U", "u4", 300),
        ("1065353216", "f4", 1.0),
        ("0x3C00", "f2", 1.0),
    ],
)
def test_immediates(text: str, kind: str, value: float):
    """Floats by their bits, also where integers are asked for; integers wrap."""
    found = immediate(text, np.dtype(kind))
    assert found == value and np.asarray(found).dtype == np.dtype(kind)


@pytest.mark.parametrize(("text", "value"), [("0", False), ("1", True), ("-1", True)])
def test_predicates(text: str, value: bool):
    assert immediate(text, np.dtype(np.bool_)) is value
    assert (threads().read(text, "pred") == value).all() and len(threads().read(text, "pred")) == COUNT
