"""How the units of a product are divided: each is taken once, in whole blocks, within one chunk of rows."""

import pytest

pytest.importorskip("llvmlite")

from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import ProductRecord
from kernels.cpu.runtime.work_split import (
    ROWS,
    VECTORS,
    following_block,
    last_block,
    linear_middle,
    linear_share,
    linear_units,
)

COLUMNS = (1, 15, 16, 17, 32, 48, 49, 96, 97, 144, 208, 1024)


def product(rows: int, columns: int) -> ProductRecord:
    """Of which nothing but the sizes is read."""
    sizes = {"rows": rows, "columns": columns, "words": 1, "out_bytes": 2}
    return ProductRecord(x=0, weight=0, params=0, out=0, **sizes)


def shares(record: ProductRecord, threads: int) -> list[tuple[int, int]]:
    """Where each share of a product begins and how many units it has, half after half."""
    units = linear_units(record)
    middle = linear_middle(record, units)
    found: list[tuple[int, int]] = []
    for begin, end in ((0, middle), (middle, units)):
        while begin < end:
            found.append((begin, linear_share(record, begin, end - begin, threads)))
            begin += found[-1][1]
        assert begin == end, "a share reaches into the other half"
    return found


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS])
def test_every_unit_is_taken_once(rows: int, threads: int) -> None:
    for columns in COLUMNS:
        record = product(rows, columns)
        strips = -(-columns // 16)
        taken = shares(record, threads)
        assert [unit for first, count in taken for unit in range(first, first + count)] == [
            *range(linear_units(record))
        ]
        for first, count in taken:
            assert first // strips == (first + count - 1) // strips, "rows of two chunks"
            whole = first % strips % VECTORS == 0 and ((first + count) % strips) % VECTORS == 0
            assert whole or count == 1 or (first + count) % strips == 0


def test_a_product_without_rows_has_no_units() -> None:
    assert linear_units(product(0, 48)) == 0 and shares(product(0, 48), 2) == []


def test_halves_begin_at_blocks() -> None:
    for columns in COLUMNS:
        record = product(1, columns)
        assert linear_middle(record, linear_units(record)) % VECTORS == 0


@pytest.mark.parametrize("strips", range(1, 14))
def test_each_half_has_a_last_block(strips: int) -> None:
    """The first thread's is the one before the middle; without a middle, both have the last of all."""
    blocks, middle = -(-strips // VECTORS), strips // 2 // VECTORS
    assert last_block(strips, 1) == blocks - 1
    assert last_block(strips, 0) == (middle - 1 if middle else blocks - 1)


def test_a_thread_without_a_next_product_asks_for_its_own_block_again() -> None:
    assert following_block(0, 0, 77) == following_block(0, 1, 77) == 77


def test_narrow_rows_are_taken_together() -> None:
    assert [row_grain(width) for width in (1, 4095, 4096, 4097, 1 << 20)] == [4096, 1, 1, 1, 1]
