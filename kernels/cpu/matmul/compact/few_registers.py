"""The product of kernels.cpu.matmul.compact.product where registers are few: 16 of 256 bits.

    1 or 2 rows     48 columns: what is unpacked is multiplied in registers
    more            16 columns: some groups at a time become float32 in the first-level cache, and are
                    multiplied with all rows, whose sums wait in memory until the next groups are

The first of many rows' tiles unpacks a group while it multiplies the one before, so that unpacking fills what
multiplying leaves idle; the others read what it has left. The order in which products are added is that of
kernels.cpu.matmul.gemm, so that results have the same bits.

Parts are what is multiplied where no instruction multiplies pairs of bfloat16 (kernels.cpu.isa.dot): float32
numbers, of a word of 16 columns one vector for each part.

    parts [groups, 4 words, 2 parts, 16] float32, of one strip

A group is unpacked as if no number of it were rare. Those that are, are written over what is there, one by
one.
"""

from kernels.cpu.compiler.language import Static, unlikely, unroll
from kernels.cpu.compiler.vectors import f32x16, i8x64, i16x32, i32x16
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.sets.halves import bits_of_halves, count_of, hidden, load_i16x32, reaches, words_of
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    add_pairs,
    load_f32,
    load_i32,
    pair_weights,
    prefetch,
    reread,
    select,
    store_f32,
    store_i32,
)
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, read_u32, write_u32
from kernels.cpu.matmul.compact.tiles import ask_ahead, list_address, strips_of
from kernels.cpu.matmul.compact.unpack import (
    CODES,
    GROUP,
    RARE,
    STRIP_BYTES,
    WORDS,
    one_is_rare,
    table_of,
    two_words,
)
from kernels.cpu.matmul.leaves import BIASES, begin_leaf, end_leaf, first_written, leaf_bytes, writing_record
from kernels.cpu.matmul.many_rows import AT_ONCE, SCRATCH_BYTES, write_strip
from kernels.cpu.matmul.records import CompactLinearRecord
from kernels.cpu.matmul.words import PAIR_BYTES, PAIRS, split_inputs, store_columns
from kernels.cpu.runtime.work_split import ROWS, VECTORS, following_block, last_block

PARTS = WORDS * PAIR_PARTS
"""Vectors of a strip's group."""
PARTS_BYTES = 64 * PARTS
HALF = PARTS // 2
"""Vectors of two words, which are unpacked together."""
FEW = 2
"""The most rows that multiply what is in registers."""
LEAST, FIRST, LARGEST = 3, 4, 6
"""Rows of a tile: the least, those of the first of several, and the most, whose sums take 12 registers.
Unpacking, too, needs some: of more rows the first tile has 4."""
GROUPS = AT_ONCE // PARTS
"""Groups that are unpacked at once."""


def _half_parts(strip: int, table: i8x64, half: Static[int]) -> list[i32x16]:
    """Parts of the first two or the last two words of a strip's group. strip: its address."""
    words = two_words(strip, table, load_i16x32(strip + CODES), half)
    return [pair_weights(words_of(words[i // PAIR_PARTS]), i % PAIR_PARTS) for i in unroll(range(HALF))]


def _write_parts(strips: list[int], table: i8x64, out: int) -> None:
    """Those of a group of one strip, no number of which is rare."""
    for half in unroll(range(2)):
        parts = _half_parts(strips[0], table, half)
        for i in unroll(range(HALF)):
            store_i32(out + 64 * (HALF * half + i), parts[i])


def _words_with_one(strip: int, table: i8x64, rare: int, count: list[int]) -> list[i16x32]:
    """The words of a group of which one number is rare: the one at `rare`. count: becomes how many are."""
    codes = hidden(load_i16x32(strip + CODES))
    first, last = two_words(strip, table, codes, 0), two_words(strip, table, codes, 1)
    words, one = [first[0], first[1], last[0], last[1]], i16x32(read_u16(rare))
    for place in unroll(range(WORDS)):
        is_rare = reaches(words[place], RARE << 8)
        words[place] = select(is_rare, one, words[place])
        count[0] += count_of(is_rare)
    return words


def _write_all_parts(strips: list[int], v: Static[int], table: i8x64, rare: list[int], parts: int) -> None:
    """Writes those of a group of strip v. rare: of each strip the address of its next rare number, which goes
    on to the next group's."""
    strip = strips[v]
    for half in unroll(range(2)):
        words = two_words(strip, table, hidden(load_i16x32(strip + CODES)), half)
        for i in unroll(range(HALF)):
            part = pair_weights(words_of(words[i // PAIR_PARTS]), i % PAIR_PARTS)
            store_i32(parts + 64 * (HALF * half + i), part)
        for i in unroll(range(2)):
            bits = bits_of_halves(reaches(words[i], RARE << 8))
            while bits != 0:
                number = lowest_bit(bits)
                part_number = HALF * half + PAIR_PARTS * i + 1 - number % 2
                write_u32(parts + 64 * part_number + number // 2 * 4, read_u16(rare[v]) << 16)
                bits = bits & (bits - 1)
                rare[v] += 2


def _add_rows(
    vectors: Static[int], sums: list[f32x16], weight: i32x16, v: Static[int], x_rows: list[int], offset: int
) -> None:
    """Adds the products of a part of strip v, of so many. x_rows: addresses of the rows' parts of words."""
    for m in unroll(range(len(x_rows))):
        value = i32x16(read_u32(x_rows[m] + offset))
        sums[vectors * m + v] = add_pairs(sums[vectors * m + v], weight, value)


def _add_strip(
    vectors: Static[int],
    sums: list[f32x16],
    lists: list[int],
    v: Static[int],
    strips: list[int],
    x_rows: list[int],
    offset: int,
    table: i8x64,
    kept: int,
) -> None:
    """Adds the products of a group of strip v, of so many; where several of its numbers are rare, by way of
    memory, at `kept`. lists: of each strip the address of its next rare number, which goes on to the next
    group's."""
    if unlikely(one_is_rare([strips[v]])):
        count = [0]
        words = _words_with_one(strips[v], table, lists[v], count)
        if unlikely(count[0] > 1):
            _write_all_parts(strips, v, table, lists, kept)
            for i in unroll(range(PARTS)):
                _add_rows(vectors, sums, load_i32(kept + 64 * i), v, x_rows, offset + 4 * i)
        else:
            lists[v] += 2
            for i in unroll(range(PARTS)):
                part = pair_weights(words_of(words[i // PAIR_PARTS]), i % PAIR_PARTS)
                _add_rows(vectors, sums, part, v, x_rows, offset + 4 * i)
    else:
        for half in unroll(range(2)):
            parts = _half_parts(strips[v], table, half)
            for i in unroll(range(HALF)):
                _add_rows(vectors, sums, parts[i], v, x_rows, offset + 4 * (HALF * half + i))


def _few_rows(
    rows: Static[int],
    vectors: Static[int],
    record: CompactLinearRecord,
    x: int,
    row: int,
    strip: int,
    w: int,
    soon: int,
    rare: int,
    kept: int,
) -> None:
    """So many rows of x, from `row` of the result on, times 16 * vectors columns, from `strip` on. w: address
    of the strip; soon: of what comes next; rare: of the address of its list. kept: of vectors of parts, for a
    group."""
    groups, columns = record.words // WORDS >> record.depth, record.columns
    pitch, out_bytes = record.words * PAIR_BYTES, record.out_bytes
    table = table_of(record.base)
    sums = [f32x16(0.0) for _ in unroll(range(rows * vectors))]
    lists = [read_i64(rare + 8 * v) for v in unroll(range(vectors))]
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    for group in range(groups):
        ask_ahead(vectors, w, soon, groups, group)
        strips, offset = strips_of(vectors, w, group), 4 * PARTS * group
        for v in unroll(range(vectors)):
            _add_strip(vectors, sums, lists, v, strips, x_rows, offset, table, kept)
    out = record.out + (row * columns + LANES * strip) * out_bytes
    for v in unroll(range(vectors)):
        bias = load_f32(record.params + 64 * (strip + v))
        for m in unroll(range(rows)):
            at = out + (columns * m + LANES * v) * out_bytes
            store_columns(at, out_bytes, sums[vectors * m + v] + bias, columns - LANES * (strip + v))


def _unpack(w: int, table: i8x64, rare: list[int], parts: int) -> None:
    """Writes the parts of a group. rare: the address of its next rare number, which goes on to the next
    group's."""
    strips = [w]
    if unlikely(one_is_rare(strips)):
        _write_all_parts(strips, 0, table, rare, parts)
    else:
        _write_parts(strips, table, parts)


def _tile(
    rows: Static[int],
    makes: Static[bool],
    groups: int,
    x: int,
    pitch: int,
    w: int,
    base: int,
    rare: int,
    parts: int,
    sums: int,
    soon: int,
) -> int:
    """Adds products of so many groups to the sums of some rows. makes: the parts, which are there else, and
    asks for as many groups from `soon` on. Returns the address of the next rare number."""
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    totals = [load_f32(sums + 64 * m) for m in unroll(range(rows))]
    table = table_of(base)
    lists = [rare]
    if makes:
        _unpack(w, table, lists, parts)
    for group in range(groups):
        if makes:
            for line in unroll(range(0, STRIP_BYTES, 64)):
                prefetch(soon + GROUP * group + line)
            if group + 1 < groups:
                _unpack(w + GROUP * (group + 1), table, lists, parts + PARTS_BYTES * (group + 1))
        for i in unroll(range(PARTS)):
            weight = load_i32(parts + PARTS_BYTES * group + 64 * i)
            _add_rows(1, totals, weight, 0, x_rows, 4 * (PARTS * group + i))
    for m in unroll(range(rows)):
        store_f32(sums + 64 * m, totals[m])
    return lists[0]


def _first_rows(rows: int) -> int:
    """Rows of the first of several tiles: one or two more where the others would be tiles of 4 and 3 rows,
    which wait for their own sums."""
    over = (rows - FIRST) % LARGEST
    return FIRST + over if over <= LARGEST - FIRST else FIRST


def _add_groups(
    groups: int,
    rows: int,
    x: int,
    pitch: int,
    w: int,
    base: int,
    rare: int,
    parts: int,
    sums: int,
    soon: int,
) -> int:
    """Adds products of so many groups to the sums of all rows: behind the first tile in tiles as even as
    possible. Returns the address of the next rare number."""
    done = rows if rows <= LARGEST else _first_rows(rows)
    for each in unroll(range(LEAST, LARGEST + 1)):
        if done == each:
            rare = _tile(each, True, groups, x, pitch, w, base, rare, parts, sums, soon)
    tiles = (rows - done + LARGEST - 1) // LARGEST
    for i in range(tiles):
        size = (rows - done + tiles - i - 1) // (tiles - i)
        at, to = x + pitch * done, sums + 64 * done
        for each in unroll(range(LEAST, LARGEST + 1)):
            if size == each:
                _tile(each, False, groups, at, pitch, w, base, rare, parts, to, 0)
        done += size
    return rare


def _many_rows(
    record: CompactLinearRecord,
    x: int,
    row: int,
    rows: int,
    strip: int,
    w: int,
    soon: int,
    lists: int,
    scratch: int,
) -> None:
    """Does what _few_rows() does, for more rows and one strip. lists: address of the address of its list."""
    groups, pitch = record.words // WORDS >> record.depth, record.words * PAIR_BYTES
    pieces, sums = (groups + GROUPS - 1) // GROUPS, scratch + 64 * AT_ONCE
    step, rare = (groups + pieces - 1) // pieces, read_i64(lists)
    for m in range(rows):
        store_f32(sums + 64 * m, f32x16(0.0))
    for first in range(0, groups, step):
        some, at = min(step, groups - first), w + GROUP * first
        following = soon if first + some == groups else at + GROUP * some
        x_at = x + 4 * PARTS * first
        rare = _add_groups(some, rows, x_at, pitch, at, record.base, rare, scratch, sums, following)
    write_strip(PAIRS, record, row, rows, strip, sums, 0)


def multiply_strips(record: CompactLinearRecord, first: int, count: int, thread: int) -> None:
    """Units of a product: blocks, and strips where a block is not taken whole."""
    words, strips, leaves = record.words, (record.columns + LANES - 1) // LANES, 1 << record.depth
    row, strip, end = first // strips * ROWS, first % strips, first % strips + count
    rows, last = min(record.rows - row, ROWS), last_block(strips, thread)
    scratch = read_i64(record.scratch + 8 * thread) + leaf_bytes(record.depth)
    leaf_words = words >> record.depth
    size, to = leaf_words // WORDS * GROUP, writing_record(record, record.scratch, thread)
    x = split_inputs(PAIRS, record.x + 4 * words * row, rows, words, scratch + SCRATCH_BYTES)
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        taken = VECTORS if rows <= FEW and whole else 1
        for leaf in range(leaves):
            begin = record.weight + (leaves * block + leaf) * size
            w, soon, lists = begin + inner * STRIP_BYTES, begin + size, list_address(record, strip, leaf)
            if leaf == leaves - 1:
                if block == last:
                    soon = following_block(record.following, thread, begin)
                if taken == 1 and inner < VECTORS - 1:
                    soon = w + STRIP_BYTES - leaf * size
            elif taken == 1:
                soon = w + size
            begin_leaf(BIASES, record, to, block, leaf)
            target = CompactLinearRecord.at(to)
            to_row, to_strip = first_written(record, row, strip)
            x_at = x + PAIR_BYTES * leaf_words * leaf
            for few in unroll(range(1, FEW + 1)):
                if rows == few and taken == VECTORS:
                    _few_rows(few, VECTORS, target, x_at, to_row, to_strip, w, soon, lists, scratch)
                elif rows == few:
                    _few_rows(few, 1, target, x_at, to_row, to_strip, w, soon, lists, scratch)
            if rows > FEW:
                _many_rows(target, x_at, to_row, rows, to_strip, w, soon, lists, scratch)
            end_leaf(BIASES, record, to, row, rows, strip, taken, leaf)
        strip += taken
