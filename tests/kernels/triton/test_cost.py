"""The cost model: what it counts in machine code, and what follows from it."""

import pytest

from kernels.triton.capabilities import CAPABILITIES
from kernels.triton.cost import CARDS, UnitWork, predict, unit_work
from kernels.triton.sass import parse

LOOP = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDGSTS.E.BYPASS.128 [R4], [R2.64] ;
        /*0020*/                   LDGDEPBAR ;
        /*0030*/                   LDS.64 R6, [R5] ;
        /*0040*/                   LDSM.16.MT88.4 R8, [R5] ;
        /*0050*/                   HMMA.16816.F32.BF16 R12, R8, R6, R12 ;
        /*0060*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0070*/                   HGMMA.64x32x16.F32.BF16 R24, R8, gdesc[UR4], R24 ;
        /*0080*/                   MUFU.EX2 R3, R3 ;
        /*0090*/              @P0  BRA `(.L_x_1) ;
        /*00a0*/                   EXIT ;
"""


def test_what_a_warp_asks_of_each_unit():
    work = unit_work(parse(LOOP))
    assert work.instructions == 9 and work.special == 1
    assert work.memory_bytes == 32 * 16
    assert work.flops == 2 * 16 * 8 * 16 + 2 * (2 * 64 * 32 * 16) // 4
    of_products = (2 * (64 + 32) * 16 + 2 * 32 * 16) // 4  # the second has its left matrix in registers
    assert work.shared_bytes == 32 * 16 + 32 * 8 + 8 * 16 * 4 + of_products


def test_the_slowest_unit_is_the_limit_and_memory_overlaps_with_all():
    card = CARDS["H100"]
    reading = predict(UnitWork(100, 0, 4096, 512, 4096), warps=4, programs=2, card=card)
    assert reading.limit == "memory" and reading.cycles == reading.units["memory"]
    assert reading.share("memory") == 1
    computing = predict(UnitWork(10, 0, 1 << 20, 512, 64), warps=4, programs=1, card=card)
    assert (
        computing.limit == "waits"
        and max(computing.units, key=lambda unit: computing.units[unit]) == "matrix"
    )
    rest = [cycles for unit, cycles in computing.units.items() if unit != "memory"]
    assert computing.cycles == pytest.approx(sum(rest))  # one program waits at its barriers
    several = predict(UnitWork(10, 0, 1 << 20, 512, 64), warps=4, programs=4, card=card)
    assert several.cycles / 4 < computing.cycles
    assert several.flops == 4 * computing.flops


def test_rates_are_those_of_the_data_sheets():
    """Dense bfloat16 in TFLOP/s, and GB/s."""
    sheets = {"A100": 312, "RTX 3090": 71, "L4": 121, "H100": 989, "H200": 989, "RTX 5090": 209.5}
    for name, card in CARDS.items():
        assert card.flops * card.processors * card.clock / 1000 == pytest.approx(sheets[name], rel=0.01)
        assert card.memory_bytes * card.processors * card.clock == pytest.approx(card.bandwidth)
        assert card.capability in CAPABILITIES


def loop_of(instruction: str) -> UnitWork:
    """What a warp asks for in a loop of one instruction and a branch."""
    return unit_work(
        parse(f""".L_x_1:
        /*0000*/                   LDG.E.U8 R1, [R2] ;
        /*0010*/                   {instruction} ;
        /*0020*/              @P0  BRA `(.L_x_1) ;
""")
    )


@pytest.mark.parametrize(
    ("instruction", "num_bytes"),
    [
        ("LDG.E.U8 R4, [R2]", 1),
        ("LDG.E.S8 R4, [R2]", 1),
        ("LDG.E.U16 R4, [R2]", 2),
        ("LDG.E.S16 R4, [R2]", 2),
        ("LDG.E R4, [R2]", 4),
        ("LDG.E.64 R4, [R2]", 8),
        ("LDG.E.128.CONSTANT R4, [R2]", 16),
        ("LDGSTS.E [R4], [R2]", 4),
        ("LDGDEPBAR", 0),
        ("STG.E [R2], R4", 0),
    ],
)
def test_bytes_that_are_loaded(instruction: str, num_bytes: int):
    """Of 32 threads, from global memory; beside one byte of the loop's own load."""
    assert loop_of(instruction).memory_bytes == 32 * (1 + num_bytes)


@pytest.mark.parametrize(
    ("instruction", "num_bytes"),
    [
        ("LDS.U8 R4, [R2]", 32),
        ("STS.128 [R2], R4", 512),
        ("LDGSTS.E.64 [R4], [R2]", 256),
        ("LDSM.16.M88 R4, [R2]", 128),
        ("LDSM.16.MT88.2 R4, [R2]", 256),
        ("STSM.16.M88.4 [R2], R4", 512),
        ("HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], R24", 2 * (64 + 32) * 16 // 4),
        ("HGMMA.64x32x16.F32.BF16 R24, R8, gdesc[UR4], R24", 2 * 32 * 16 // 4),
        ("HMMA.16816.F32.BF16 R12, R8, R6, R12", 0),
    ],
)
def test_bytes_of_shared_memory(instruction: str, num_bytes: int):
    """A product of a group of warps reads both matrices from there, or its right one."""
    assert loop_of(instruction).shared_bytes == num_bytes


@pytest.mark.parametrize(
    ("instruction", "flops"),
    [
        ("HMMA.16816.F32.BF16 R12, R8, R6, R12", 2 * 16 * 8 * 16),
        ("HMMA.1688.F32.BF16 R12, R8, R6, R12", 2 * 16 * 8 * 8),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24", 2 * 64 * 128 * 16 // 4),
        ("FFMA R1, R2, R3, R4", 0),
    ],
)
def test_products(instruction: str, flops: int):
    assert loop_of(instruction).flops == flops


def test_cycles_of_each_unit():
    """Four schedulers, 16 lanes of special functions, 128 bytes of shared memory a cycle, the card's rest."""
    card = CARDS["RTX 3090"]
    found = predict(UnitWork(12, 3, 1024, 640, 96), warps=2, programs=5, card=card)
    memory = 10 * 96 / (936 / 1.70 / 82)
    assert found.units == pytest.approx(
        {"issue": 30, "special": 60, "matrix": 20, "shared": 50, "memory": memory}
    )
    assert found.flops == 10 * 1024 and found.cycles == pytest.approx(max(memory, 60 + (30 + 20 + 50) / 5))
