"""How the units of a product are divided among threads, and what a thread needs next.

A unit is a strip of 16 columns, for a chunk of rows. Threads with even numbers begin with the first half of
the units, those with odd ones with the second (kernels.cpu.runtime.program).
"""

from kernels.cpu.isa.vectors import LANES, read_i64
from kernels.cpu.runtime.records import ProductRecord

VECTORS = 3
COLUMNS = VECTORS * LANES
"""Columns of a tile, and of a block of packed weights. Tiles of 12 rows x 2 vectors reach 330
GFLOP/s on two Zen 4 cores, 8 x 3 reach 450 of 469."""
ROWS = 256
"""Rows that are computed before the next ones: x then stays in the second-level cache, while the
weights come from memory once per chunk."""


def linear_units(record: ProductRecord) -> int:
    """Strips of 16 columns, once per chunk of rows."""
    return (record.rows + ROWS - 1) // ROWS * ((record.columns + LANES - 1) // LANES)


def linear_middle(record: ProductRecord, units: int) -> int:
    """Where the second half of the units begins: at a block."""
    strips = (record.columns + LANES - 1) // LANES
    return units // 2 - units // 2 % strips % VECTORS


def linear_share(record: ProductRecord, unit: int, left: int, threads: int) -> int:
    """How many units to take from `unit` on, of those that are left of its half: whole blocks within one
    chunk of rows. Where their number does not come out even, strips at the very end, so that threads end
    together: the strips of a block take half as long again as the block."""
    strips = (record.columns + LANES - 1) // LANES
    at = unit % strips
    uneven = (strips + VECTORS - 1) // VECTORS % threads
    if left <= VECTORS and uneven and (threads > 2 or at + left == strips):
        return 1
    taken = max(VECTORS, left // max(2, threads))
    taken -= (at + taken) % VECTORS
    return min(max(taken, 1), strips - at)


def last_block(strips: int, thread: int) -> int:
    """Of a thread's half, where there is one chunk of rows."""
    blocks = (strips + VECTORS - 1) // VECTORS
    middle = strips // 2 // VECTORS
    return blocks - 1 if thread % 2 or middle == 0 else middle - 1


def following_block(following: int, thread: int, own: int) -> int:
    """Where a thread begins with the next product. following: address of its addresses, or 0. own: of a block
    that is there."""
    if following == 0:
        return own
    return read_i64(following + 8 * (thread % 2))
