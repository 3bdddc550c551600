"""What the emulator reads of PTX: labels, scopes, guards, operands, registers."""

import pytest

from ptx_emulator.parser import Address, PtxError, RegisterList, parse

TEXT = """
// a comment; with a semicolon
.version 8.7
.target sm_90a, debug
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
  .param .u64 .ptr .global .align 1 kernel_param_0,
  .param .u32 kernel_param_1,
  .param .f32 kernel_param_2
)
.reqntid 128
{
  .reg .pred %p<3>;
  .reg .b16 %rs<2>, %half;
  .reg .f64 %fd<1>;
  .loc 1 20 3
  ld.param.b64 %rd1, [kernel_param_0]; // of the first
  add.s32 %r1,%r2, -3;
  @!%p1 bra $L__end;
  @%p2 st.global.v2.b32 [ %rd1 + -8 ], { %r1, %r2 };
$L__next:
  {
    .reg .b32 inner;
    mov.b32 inner, {%rs1, %half};
    @p cp.async.cg.shared.global [ %r1 + 0x10 ], [%rd1], 0x10, %r2;
  }
$L__end: ret;
}
.section .debug_info { .b8 1; }
"""


def test_a_module():
    kernel = parse(TEXT)
    assert (kernel.name, kernel.target, kernel.threads) == ("kernel", 90, 128)
    assert kernel.parameters == [
        ("kernel_param_0", "u64"),
        ("kernel_param_1", "u32"),
        ("kernel_param_2", "f32"),
    ]
    widths = {"%p0": 1, "%p1": 1, "%p2": 1, "%rs0": 16, "%rs1": 16, "%half": 16, "%fd0": 64, "inner": 32}
    assert kernel.registers == widths
    assert [instruction.parts[0] for instruction in kernel.code] == [
        "ld",
        "add",
        "bra",
        "st",
        "mov",
        "cp",
        "ret",
    ]
    assert kernel.labels == {"$L__next": 4, "$L__end": 6}


def test_operands_and_guards():
    load, add, branch, store, move, copy, end = parse(TEXT).code
    assert load.operands == ("%rd1", Address("kernel_param_0", 0))
    assert add.operands == ("%r1", "%r2", "-3") and add.parts == ("add", "s32")
    assert (add.guard, add.negated) == ("", False)
    assert (branch.guard, branch.negated, branch.operands) == ("%p1", True, ("$L__end",))
    assert (store.guard, store.negated) == ("%p2", False)
    assert store.operands == (Address("%rd1", -8), RegisterList(("%r1", "%r2")))
    assert move.operands == ("inner", RegisterList(("%rs1", "%half")))
    assert copy.guard == "p" and copy.operands == (Address("%r1", 16), Address("%rd1", 0), "0x10", "%r2")
    assert end.operands == () and end.text == "ret"


@pytest.mark.parametrize("missing", [".entry", ".target", ".reqntid"])
def test_a_module_that_lacks_something(missing: str):
    with pytest.raises(PtxError, match="no entry, target or number of threads"):
        parse(TEXT.replace(missing, ".other"))


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("pred", 1), ("b8", 8), ("b16", 16), ("f16", 16), ("b32", 32), ("f32", 32), ("b64", 64), ("f64", 64)],
)
def test_widths_of_registers(kind: str, bits: int):
    text = TEXT.replace(".reg .f64 %fd<1>;", f".reg .{kind} %x<2>;")
    assert parse(text).registers["%x1"] == bits


def test_a_module_without_debugging_information():
    """The body ends with the text, and has the same code."""
    kernel, plain = parse(TEXT), parse(TEXT[: TEXT.index(".section")])
    assert plain.code == kernel.code and plain.labels == kernel.labels and plain.code
