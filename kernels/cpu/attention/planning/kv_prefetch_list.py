"""The list of what the attention layers of a step read, for
kernels.cpu.attention.planning.kv_prefetch_kernel."""

from kernels.cpu.attention.planning.kv_prefetch_kernel import MOST_PIECES, PIECE
from kernels.cpu.attention.records import AttentionItem, PlanRecord, PrefetchRecord, PrefetchStep, first_seen
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, write_i64


def _list_blocks(
    plan: PlanRecord, record: PrefetchRecord, item: AttentionItem, above: int, to: int, most: int
) -> int:
    """Of the keys, then of the values of an item's row. above: address of the table of a row that may begin
    with the same blocks, which are in the list then; or 0. Returns how many pieces."""
    size, block_bytes, group = record.block_size, record.block_bytes, record.group
    start, table, first = item.start, item.table, item.first
    begin = first_seen(plan, start + first // group) // size
    end = start + (first + item.pairs - 1) // group
    while begin <= end // size and _is_shared(above, table, begin):
        begin += 1
    count = 0
    for half in range(2):
        for index in range(begin, end // size + 1):
            block = read_i64(table + 8 * index) * block_bytes + half * record.to_values
            for at in range(0, block_bytes, PIECE):
                if count < most:
                    write_i64(to + 8 * count, block + at)
                    count += 1
    return count


def _is_shared(above: int, table: int, index: int) -> bool:
    """Whether two rows have the same block there."""
    return above != 0 and read_i64(above + 8 * index) == read_i64(table + 8 * index)


@operation
def list_pieces(record: PrefetchRecord, first: int, count: int, thread: int) -> None:
    """One unit makes the list. Only the first item of a row counts, and of its parts the first; and the item
    that is paired with it."""
    plan, step = PlanRecord.at(record.plan), PrefetchStep.at(record.step)
    listed = above = 0
    for number in range(record.items):
        item = AttentionItem.at(plan.items, number)
        while item.address != 0 and item.first == 0 and item.part <= 0:
            to, left = step.pieces + 8 * listed, MOST_PIECES - listed
            listed += _list_blocks(plan, record, item, above, to, left)
            above = item.table
            item = AttentionItem.at(item.paired)
    step.count = listed
