"""Where a part of a unit of attention is: the addresses of its tiles, in the order in which they are needed.

    place   0   first position (a multiple of 16); tiles; address of the item; KV head
            32  last position of the item's row and one; tiles that the row shares with its company; tiles
                that only the row has; last position of the company's row and one
            LIST the list: addresses of the tiles of keys, then of values; then of what comes after this part

Keys and values alike come in the order: shared tiles, the row's own ones, those of its company.
"""

from kernels.cpu.attention.tiles import AHEAD
from kernels.cpu.attention.vector_loops import PART, QUERIES, copy
from kernels.cpu.attention.work_items_kernel import COMPANY, ITEM, SHARED
from kernels.cpu.isa.vectors import read_i64, write_i64

LIST = 64
PLACE = 1280
"""Bytes of a place. The list has 4 * PART // 16 + AHEAD + QUERIES entries at most: two rows may share nothing
of a part."""


def locate(plan: int, record: int, unit: int, part: int, place: int) -> None:
    """Writes down where a part of a unit is. Of a split item some parts may have no tiles: outside of the
    window, or beyond its last query."""
    kv_heads, group, window = read_i64(record + 72), read_i64(record + 80), read_i64(plan + 8)
    item, head = read_i64(plan) + ITEM * (unit // kv_heads), unit % kv_heads
    start, first, company = read_i64(item), read_i64(item + 24), read_i64(item + COMPANY)
    lowest = 0 if window == 0 else max(0, start + first // group - window + 1)
    begin = max(lowest // 16 * 16, part * PART)
    end = min(start + (first + read_i64(item + 32) - 1) // group + 1, part * PART + PART)
    tiles = max(0, (end - begin + 15) // 16)
    shared = others = 0
    if company:
        company_end = min(read_i64(company) + 1, part * PART + PART)
        shared = max(0, min(read_i64(company + SHARED) - begin, PART)) // 16
        others = (company_end - begin + 15) // 16 - shared
        write_i64(place + 56, company_end)
    write_i64(place, begin)
    write_i64(place + 8, tiles + others)
    write_i64(place + 16, item)
    write_i64(place + 24, head)
    write_i64(place + 32, end)
    write_i64(place + 40, shared)
    write_i64(place + 48, tiles - shared)
    _list_tiles(record, item, head, begin, tiles, place + LIST, tiles + others)
    if others > 0:
        at = place + LIST + 8 * tiles
        _list_tiles(record, company, head, begin + 16 * shared, others, at, tiles + others)


def _list_tiles(record: int, item: int, head: int, begin: int, tiles: int, at: int, to_values: int) -> None:
    """Of an item's row, from a position on. at: address in the list of keys. to_values: entries from there to
    those of values."""
    keys, values, kv_heads = read_i64(record + 24), read_i64(record + 32), read_i64(record + 72)
    tile_bytes, block_size = 32 * read_i64(record + 88), read_i64(record + 96)
    table, block, in_block = read_i64(item + 8), begin // block_size, begin % block_size // 16
    for _tile in range(tiles):
        slot = (read_i64(table + 8 * block) * kv_heads + head) * (block_size // 16) + in_block
        write_i64(at, keys + slot * tile_bytes)
        write_i64(at + 8 * to_values, values + slot * tile_bytes)
        at += 8
        in_block += 1
        if 16 * in_block == block_size:
            block += 1
            in_block = 0


def append(place: int, later: int) -> None:
    """Continues a place's list with what comes after it, if anything does: as much as is asked for ahead."""
    tiles, following = read_i64(place + 8), read_i64(later + 8)
    at, source = place + LIST + 16 * tiles, later + LIST
    if 2 * following >= AHEAD + QUERIES:
        copy(source, at, (AHEAD + QUERIES) // 8)
        return
    left = 2 * following
    if following == 0:
        source, left = at - 8, 1
    for entry in range(AHEAD + QUERIES):
        write_i64(at + 8 * entry, read_i64(source))
        if left > 1:
            source += 8
            left -= 1
