"""What benchmarks/gpu_balance.py says of steps, on a card of round numbers."""

import pytest

pytest.importorskip("triton")

from benchmarks.gpu_balance import STEPS, Costs, last_done, line

COSTS = Costs(programs=264, chunk_us=10.0, part_us=0.01)


def test_programs_take_the_next_item_when_they_are_free():
    assert last_done([4, 1, 1, 1, 1], 2) == 4
    assert last_done([1, 1, 1, 1, 4], 2) == 6


def test_a_long_row_does_not_walk_alone():
    """64 chunks of a row of 32k, beside 62 of 31 rows, for each of 8 heads: 3.8 chunks of each program."""
    cells = line("", STEPS["a row of 32k among 31 of 1k"], COSTS, 16).split("|")
    alone, listed, _, least = (float(cell) for cell in cells[2:6])
    assert alone == 640 and least == pytest.approx(10 * 8 * 126 / 264, abs=1)
    assert least < listed < 2 * least


def test_even_steps_stay_as_they_are():
    cells = line("", STEPS["32 rows of 1k"], COSTS, 16).split("|")
    assert float(cells[2]) == float(cells[3]) == 20
