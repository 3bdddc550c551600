"""What is read from machine code, on a few made-up lines of it."""

import pytest

from kernels.triton.sass import hazards, loops, main_loop, main_loop_code, parse


def listing(*lines: str) -> str:
    """As nvdisasm prints it; a line that begins with a dot is a label."""
    return "\n".join(
        f"{line}:" if line.startswith(".") else f"        /*{16 * at:04x}*/                   {line} ;"
        for at, line in enumerate(lines)
    )


PIPELINE = (
    "LDC R1, c[0x0][0x28]",
    "@!P0 BRA `(.L_x_0)",
    ".L_x_1",  # a search without any product
    "LDG.E R4, desc[UR4][R2.64]",
    "LDG.E R5, desc[UR4][R2.64+0x4]",
    "@P0 BRA `(.L_x_1)",
    ".L_x_0",
    ".L_x_2",  # tiles without a mask
    "DEPBAR.LE SB0, 0x2",
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR12], RZ, !UPT",
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR12], R88, gsb0",
    "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    "MUFU.EX2 R90, R90",
    "LDGSTS.E.BYPASS.128 [R51], desc[UR18][R6.64]",
    "LDGDEPBAR",
    "BRA.U UP0, `(.L_x_2)",
    ".L_x_3",  # tiles with one
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR12], RZ, !UPT",
    "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR12], R88, gsb0",
    *["FMNMX R1, R1, R2, !PT"] * 10,
    "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    "@!P2 BRA `(.L_x_3)",
    "EXIT",
    ".L_x_7",
    "BRA `(.L_x_7)",
)


def test_the_main_loop_is_the_short_one_with_the_products():
    code = parse(listing(*PIPELINE))
    assert len(code) == sum(not line.startswith(".") for line in PIPELINE)
    assert [len(loop) for loop in loops(code)] == [3, 9, 14]
    loop = main_loop(code)
    assert (loop.instructions, loop.products, loop.product_waits, loop.waits) == (9, 2, 1, 2)
    assert (loop.copies, loop.copy_bytes, loop.barriers, loop.special) == (1, 16, 1, 1)
    assert (loop.doubles, loop.spills) == (0, 0)


def test_a_wait_behind_each_product_shows():
    """As where the assembler serializes them."""
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    lines = list(PIPELINE)
    lines.insert(11, wait)
    loop = main_loop(parse(listing(*lines)))
    assert loop.product_waits == loop.products == 2


def test_loops_without_products():
    """Of those inside of others, the longest that loads; a kernel without any is taken whole."""
    outer = (".L_x_0", ".L_x_1", "LDG.E.128 R4, desc[UR4][R2.64]", "DFMA R4, R4, R6, R8", "STL [R1], R4")
    code = parse(listing(*outer, "@P0 BRA `(.L_x_1)", "FADD R1, R1, R2", "@P1 BRA `(.L_x_0)", "EXIT"))
    loop = main_loop(code)
    assert (loop.instructions, loop.doubles, loop.spills, loop.copy_bytes) == (4, 1, 1, 0)
    assert main_loop(parse(listing("FADD R1, R1, R2", "EXIT"))).instructions == 2


@pytest.mark.parametrize(
    ("operation", "caught"),
    [
        ("FADD R142, R1, R2", "FADD writes R142"),
        ("LDS.128 R136, [R2]", ""),
        ("LDS.128 R140, [R2]", "LDS.128 writes R140, R141, R142, R143"),
        ("IMAD.WIDE R138, R2, 0x4, R6", ""),
        ("IMAD.WIDE R142, R2, 0x4, R6", "IMAD.WIDE writes R142, R143"),
        ("STG.E [R140.64], R141", ""),
        ("ISETP.GE.AND P0, PT, R140, R141, PT", ""),
    ],
)
def test_writes_to_what_a_product_reads(operation: str, caught: str):
    """Its left operand is in R140 to R143 until the wait; also where a branch is between them."""
    product = "HGMMA.64x128x16.F32.BF16 R24, R140, gdesc[UR12].tnspB, R24, gsb0"
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    straight = listing(product, operation, wait, "EXIT")
    around = listing(product, "@P0 BRA `(.L_x_0)", wait, "EXIT", ".L_x_0", operation, wait, "EXIT")
    for text in (straight, around):
        found = hazards(parse(text))
        assert [one.split(", which")[0] for one in found] == ([caught] if caught else [])
    assert hazards(parse(listing(product, wait, operation, "EXIT"))) == []
    loop = listing(".L_x_0", operation, product, "@P0 BRA `(.L_x_0)", wait, "EXIT")
    assert bool(hazards(parse(loop))) == bool(caught)


@pytest.mark.parametrize(
    ("line", "leaves"),
    [
        ("EXIT", True),
        ("@P0 EXIT", False),
        ("RET.REL.NODEC R20", True),
        ("BRA `(.L_x_0)", True),
        ("@!P0 BRA `(.L_x_0)", False),
        ("BRA.U UP0, `(.L_x_0)", False),
        ("BRA.U !UP0, `(.L_x_0)", False),
        ("FADD R1, R1, R2", False),
        ("@P0 FADD R1, R1, R2", False),
    ],
)
def test_what_the_next_instruction_never_follows(line: str, leaves: bool):
    (one,) = parse(listing(line))
    assert bool(one.always_leaves) is leaves


def test_of_two_loops_in_one_place_the_inner_one_counts():
    """They begin, or end, at the same instruction."""
    load, end = "LDG.E R4, desc[UR4][R2.64]", "EXIT"
    same_begin = (".L_x_0", load, "@P0 BRA `(.L_x_0)", load, load, "@P1 BRA `(.L_x_0)", end)
    assert len(main_loop_code(parse(listing(*same_begin)))) == 2
    same_end = (".L_x_0", load, load, ".L_x_1", load, "@P0 BRA `(.L_x_1)", "@P1 BRA `(.L_x_0)", end)
    assert len(main_loop_code(parse(listing(*same_end)))) == 2


def test_of_loops_with_as_many_products_the_shortest_is_the_main_one():
    """Of loops that load it is the longest."""
    product, load = "HMMA.16816.F32 R12, R8, R6, R12", "LDG.E R4, desc[UR4][R2.64]"

    def both(work: str) -> int:
        first = (".L_x_0", work, "FADD R1, R1, R2", "@P0 BRA `(.L_x_0)")
        second = (".L_x_1", work, "@P0 BRA `(.L_x_1)", "EXIT")
        lengths = [len(main_loop_code(parse(listing(*a, *b)))) for a, b in ((first, second), (second, first))]
        assert lengths[0] == lengths[1]
        return lengths[0]

    assert both(product) == 2 and both(load) == 3


@pytest.mark.parametrize(
    ("copy", "num_bytes"),
    [
        ("LDGSTS.E [R51], desc[UR18][R6.64]", 4),
        ("LDGSTS.E.64 [R51], desc[UR18][R6.64]", 8),
        ("LDGSTS.E.BYPASS.128 [R51], desc[UR18][R6.64]", 16),
        ("UTMALDG.2D [UR8], [UR4]", 16),
        ("UBLKCP.S.G [UR8], [UR4], UR6", 16),
    ],
)
def test_widths_of_copies(copy: str, num_bytes: int):
    """The narrowest counts."""
    wide = "LDGSTS.E.BYPASS.128 [R51], desc[UR18][R6.64]"
    for copies in ((copy,), (wide, copy)):
        loop = main_loop(parse(listing(".L_x_0", *copies, "@P0 BRA `(.L_x_0)", "EXIT")))
        assert (loop.copies, loop.copy_bytes) == (len(copies), num_bytes)


@pytest.mark.parametrize(
    ("operation", "caught"),
    [
        ("FADD R139, R1, R2", False),
        ("FADD R140, R1, R2", True),
        ("FADD R143, R1, R2", True),
        ("FADD R144, R1, R2", False),
        ("DFMA R139, R4, R6, R8", True),  # two registers
        ("LDS.64 R138, [R2]", False),
        ("LDS.64 R139, [R2]", True),
        ("LDSM.16.M88.4 R137, [R2]", True),
        ("LDSM.16.M88.2 R139, [R2]", False),
        ("WARPSYNC R141", False),  # it reads it
        ("PLOP3.LUT P0, PT, PT, PT, P1, 0x8, 0x0", False),
        ("S2UR UR4, SR_CTAID.X", False),
    ],
)
def test_registers_that_an_operation_writes(operation: str, caught: bool):
    """Beside those that a product reads, R140 to R143."""
    product = "HGMMA.64x128x16.F32.BF16 R24, R140, gdesc[UR12].tnspB, R24, gsb0"
    assert bool(hazards(parse(listing(product, operation, "WARPGROUP.DEPBAR.LE gsb0, 0x0")))) is caught


def test_code_that_ends_without_a_wait():
    """All that follows the product is looked at, once, and nothing behind what leaves."""
    product, write = "HGMMA.64x64x16.F32 R24, R140, gdesc[UR12], R24, gsb0", "MOV R141, R2"
    assert hazards(parse(listing(product, "FADD R1, R1, R2"))) == []
    assert len(hazards(parse(listing(product, "FADD R1, R1, R2", write)))) == 1
    assert hazards(parse(listing(product, "EXIT", write))) == []
    assert len(hazards(parse(listing(".L_x_0", product, write, "BRA `(.L_x_0)", "EXIT")))) == 1
