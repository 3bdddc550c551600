"""A product as a sum of leaves (kernels.ops.layers.leaves): ranges of the inputs, each summed as a product of
its own, and added as a complete binary tree.

    leaf 0   leaf 1   leaf 2   leaf 3        words of a block, one leaf behind the other
        \\     /            \\     /
       level 1             level 1           float32, in the thread's memory
              \\           /
                result + bias                rounded once

Some rows of a block are multiplied leaf by leaf, by the tiles of any product: their results go to a slot of
the thread's memory in place of `out`, with biases of zero. The slot of a leaf with an odd number is added to
those of the subtrees that end with it. A product of one leaf writes its results itself.

The thread's memory: a copy of the product's record, by which tiles write; then a slot for each level of the
tree, and one for leaves with odd numbers; each has sums of ROWS rows and 48 columns.

Params of a product of several leaves: those of each leaf, with biases of zero (of forms that have biases
alone, 48 zeros for all leaves), and behind them the biases.
"""

from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.vectors import LANES, read_i64, write_i64
from kernels.cpu.matmul.words import store_columns
from kernels.cpu.runtime.records import FIELDS_BYTES, ProductRecord
from kernels.cpu.runtime.work_split import COLUMNS, ROWS, VECTORS

HEAD = 128
"""Bytes of the thread's memory before the slots."""
ROW_BYTES = 4 * COLUMNS
SLOT = ROW_BYTES * ROWS
"""Bytes of sums of all rows of a block."""
BIASES = 64
"""Bytes of the biases of 16 columns."""
assert HEAD >= FIELDS_BYTES


def leaf_bytes(depth: int) -> int:
    """What a thread needs for a product whose tree has that depth, before anything else."""
    return 0 if depth == 0 else HEAD + (depth + 1) * SLOT


def writing_record(record: ProductRecord, scratch: int, thread: int) -> int:
    """Returns the address of the record by which tiles write: the product's own, or a copy in the thread's
    memory, whose columns are those of a slot. scratch: addresses of all threads' memory."""
    if record.depth == 0:
        return record.address
    memory = read_i64(scratch + 8 * thread)
    for i in range(FIELDS_BYTES // 8):
        write_i64(memory + 8 * i, read_i64(record.address + 8 * i))
    copy = ProductRecord.at(memory)
    copy.columns, copy.out_bytes = COLUMNS, 4
    return memory


def begin_leaf(params_bytes: int, record: ProductRecord, to: int, block: int, leaf: int) -> None:
    """Makes tiles write a leaf of a block to its slot. params_bytes: of 16 columns; to: writing_record()."""
    if record.depth > 0:
        copy, odd = ProductRecord.at(to), leaf % 2
        copy.out = to + HEAD + SLOT * record.depth * odd
        if params_bytes > BIASES:
            blocks = (record.columns + COLUMNS - 1) // COLUMNS
            copy.params = record.params + VECTORS * params_bytes * (blocks * leaf + block)


def first_written(record: ProductRecord, row: int, strip: int) -> tuple[int, int]:
    """Returns the row and the strip at which tiles write: those of the result, or of a slot."""
    if record.depth == 0:
        return row, strip
    return 0, strip % VECTORS


def _biases(params_bytes: int, record: ProductRecord) -> int:
    """Address of the biases of a product of several leaves."""
    if params_bytes == BIASES:
        return record.params + VECTORS * BIASES
    blocks = (record.columns + COLUMNS - 1) // COLUMNS
    return record.params + (VECTORS * params_bytes * blocks << record.depth)


def end_leaf(
    params_bytes: int,
    record: ProductRecord,
    to: int,
    row: int,
    rows: int,
    strip: int,
    strips: int,
    leaf: int,
) -> None:
    """Adds a leaf of some rows and strips to those before it, and writes the results where it is the last
    one. row, strip: the first ones, of the result."""
    if record.depth == 0 or leaf % 2 == 0:
        return
    levels, bits = 0, leaf
    while bits % 2 == 1:
        levels += 1
        bits = bits // 2
    stride = record.columns * record.out_bytes
    for v in range(strips):
        place = record.out + stride * row + LANES * (strip + v) * record.out_bytes
        bias, columns = (
            _biases(params_bytes, record) + BIASES * (strip + v),
            record.columns - LANES * (strip + v),
        )
        for m in range(rows):
            at = to + HEAD + ROW_BYTES * m + 4 * LANES * (strip % VECTORS + v)
            total = load_f32(at + SLOT * record.depth)
            for level in range(levels):
                total = load_f32(at + SLOT * level) + total
            if leaf + 1 < 1 << record.depth:
                store_f32(at + SLOT * levels, total)
            else:
                store_columns(place + stride * m, record.out_bytes, total + load_f32(bias), columns)
