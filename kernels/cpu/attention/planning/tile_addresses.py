"""Where a part of a unit of attention is: the addresses of its tiles, in the order in which they are needed.

A PartPlace is followed by the list: addresses of the tiles of keys, then of values; then of what comes after
this part. Keys and values alike come in the order: shared tiles, the row's own ones, those of the paired row.
"""

from kernels.cpu.attention.records import AttentionItem, AttentionRecord, PartPlace, PlanRecord, first_seen
from kernels.cpu.attention.sizes import AHEAD, LIST, PART, QUERIES
from kernels.cpu.attention.vector_loops import copy
from kernels.cpu.compiler.language import Static
from kernels.cpu.isa.vectors import read_i64, write_i64


def locate(
    size: Static[int], plan: PlanRecord, record: AttentionRecord, unit: int, part: int, place: PartPlace
) -> None:
    """Writes down where a part of a unit is. Of a split item some parts may have no tiles: outside of the
    window, or beyond its last query. size: bytes of a value."""
    group = record.group
    item, head = AttentionItem.at(plan.items, unit // record.kv_heads), unit % record.kv_heads
    start, first = item.start, item.first
    begin = max(first_seen(plan, start + first // group) // 16 * 16, part * PART)
    end = min(start + (first + item.pairs - 1) // group + 1, part * PART + PART)
    tiles = max(0, (end - begin + 15) // 16)
    shared = others = 0
    if item.paired:
        paired = AttentionItem.at(item.paired)
        paired_end = min(paired.start + 1, part * PART + PART)
        shared = max(0, min(paired.shared - begin, PART)) // 16
        others = (paired_end - begin + 15) // 16 - shared
        place.paired_end = paired_end
    place.begin, place.tiles = begin, tiles + others
    place.item, place.head, place.end = item.address, head, end
    place.shared, place.own = shared, tiles - shared
    at = place.address + LIST
    _list_tiles(size, record, item, head, begin, tiles, at, tiles + others)
    if others > 0:
        paired = AttentionItem.at(item.paired)
        _list_tiles(size, record, paired, head, begin + 16 * shared, others, at + 8 * tiles, tiles + others)


def _list_tiles(
    size: Static[int],
    record: AttentionRecord,
    item: AttentionItem,
    head: int,
    begin: int,
    tiles: int,
    at: int,
    to_values: int,
) -> None:
    """Of an item's row, from a position on. at: address in the list of keys. to_values: entries from there to
    those of values."""
    keys, values, kv_heads = record.key_cache, record.value_cache, record.kv_heads
    tile_bytes, block_size = 16 * size * record.head_dim, record.block_size
    table, block, in_block = item.table, begin // block_size, begin % block_size // 16
    for _tile in range(tiles):
        slot = (read_i64(table + 8 * block) * kv_heads + head) * (block_size // 16) + in_block
        write_i64(at, keys + slot * tile_bytes)
        write_i64(at + 8 * to_values, values + slot * tile_bytes)
        at += 8
        in_block += 1
        if 16 * in_block == block_size:
            block += 1
            in_block = 0


def append(place: PartPlace, later: PartPlace) -> None:
    """Continues a place's list with what comes after it, if anything does: as much as is asked for ahead."""
    at, source = place.address + LIST + 16 * place.tiles, later.address + LIST
    following = later.tiles
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
