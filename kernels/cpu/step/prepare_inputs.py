"""The inputs of a step from the rows that compute: one pass, instead of some thirty calls of numpy.

Of a row that computes `count` tokens from position `start` on:

    tokens     token ids, positions, length of its prompt, the row itself
    slots      where the keys and values of each token and head go (kernels.ops.attention.store_kv.slot_rows)
    logits     the last token of each row that a sample is taken from
    items      of attention (kernels.cpu.attention.planning.work_items): up to 8 (query, head) pairs each, of
               a part of the positions where the row is split, or of two rows that begin with the same blocks;
               long ones first, and those that are paired with another one last

Two rows that decode and begin with the same blocks, as after a common prompt, are better off in one item:
what they share comes from the second-level cache once.

The caches are cold when a step begins, since the model's weights have gone through them: what a call
costs in a loop, it costs three times here.
"""

from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import LEAST_SHARED, LOOKED_AT, PART
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.isa.vectors import read_i64, write_i64
from kernels.cpu.step.records import PrepareInputsJob

ITEM = AttentionItem.size()


def item_length(item: AttentionItem, group: int) -> int:
    """The positions that an item looks at, with those of the paired one. group: query heads per KV head."""
    end = item.start + (item.first + item.pairs - 1) // group + 1
    if item.part >= 0:
        return min(end - item.part * PART, PART)
    return end if item.paired == 0 else end + AttentionItem.at(item.paired).start + 1


def sort_items(items: int, count: int, group: int) -> None:
    """By their length, the largest first; a shell sort in place."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            j = i
            while j >= gap and _is_shorter(items, j - gap, j, group):
                for word in range(0, ITEM, 8):
                    one, other = items + ITEM * (j - gap) + word, items + ITEM * j + word
                    value = read_i64(one)
                    write_i64(one, read_i64(other))
                    write_i64(other, value)
                j -= gap
        gap //= 3


def _is_shorter(items: int, one: int, other: int, group: int) -> bool:
    """Whether an item is shorter than another one."""
    length = item_length(AttentionItem.at(items, one), group)
    return length < item_length(AttentionItem.at(items, other), group)


def join_item(items: int, count: int, most: int, group: int, block_size: int, to: int) -> bool:
    """Whether the last one of so many items has been paired with an earlier one: then it is at `to`. most:
    positions of two rows in an item."""
    item = AttentionItem.at(items, count - 1)
    if not _may_join(item, group):
        return False
    for number in range(count - 2, max(-1, count - 2 - LOOKED_AT), -1):
        other = AttentionItem.at(items, number)
        shared = _shared_positions(item, other, block_size)
        if shared >= LEAST_SHARED and _may_join(other, group) and _fit(item, other, most):
            for word in range(0, ITEM, 8):
                write_i64(to + word, read_i64(item.address + word))
            AttentionItem.at(to).shared = shared
            other.paired = to
            return True
    return False


def _may_join(item: AttentionItem, group: int) -> bool:
    """An item with a whole row that decodes, alone."""
    alone = item.paired == 0 and item.part < 0
    return alone and item.first == 0 and item.pairs == group


def _fit(item: AttentionItem, other: AttentionItem, most: int) -> bool:
    """Both rows end in the same part, and are not too long for one thread."""
    return item.start // PART == other.start // PART and item.start + other.start + 2 <= most


def _shared_positions(item: AttentionItem, other: AttentionItem, block_size: int) -> int:
    """In the blocks that two rows have in common at their beginning, and that both have filled."""
    table, other_table = item.table, other.table
    blocks, equal = min(item.start, other.start) // block_size, 0
    while equal < blocks and read_i64(table + 8 * equal) == read_i64(other_table + 8 * equal):
        equal += 1
    return equal * block_size


SPLIT_TOKENS = 8
"""As in kernels.cpu.attention.planning.work_items."""


def _write_tokens(job: PrepareInputsJob, row: int, token: int) -> int:
    """Of one row of the step, from `token` on. Returns the next token."""
    own, start = read_i64(job.rows + 8 * row), read_i64(job.starts + 8 * row)
    ids, table = job.token_ids + own * job.token_ids_stride, job.blocks + own * job.blocks_stride
    prompt_len = read_i64(job.prompt_lens + 8 * own)
    block_size, kv_heads = job.block_size, job.kv_heads
    to_ids, to_positions, to_slots = job.out_ids, job.out_positions, job.out_slots
    to_prompt_lens, to_rows = job.out_prompt_lens, job.out_rows
    for position in range(start, start + read_i64(job.counts + 8 * row)):
        write_i64(to_ids + 8 * token, read_i64(ids + 8 * position))
        write_i64(to_positions + 8 * token, position)
        write_i64(to_prompt_lens + 8 * token, prompt_len)
        write_i64(to_rows + 8 * token, own)
        block = read_i64(table + 8 * (position // block_size))
        for head in range(kv_heads):
            slot = (block * kv_heads + head) * block_size + position % block_size
            write_i64(to_slots + 8 * (token * kv_heads + head), slot)
        token += 1
    return token


def _write_items(job: PrepareInputsJob, row: int, token: int, number: int, slot: int) -> tuple[int, int]:
    """Of one row of the step, whose first token is `token`. slot: the next one for a part's result. Returns
    the next number of an item, and the next slot."""
    own, start = read_i64(job.rows + 8 * row), read_i64(job.starts + 8 * row)
    count = read_i64(job.counts + 8 * row)
    pairs, split = count * job.group, False
    parts = 1
    if count <= SPLIT_TOKENS and start + count > job.whole:
        parts, split = (start + count + PART - 1) // PART, True
    for part in range(parts):
        own_slot = slot + part
        for first in range(0, pairs, 8):
            item = AttentionItem.at(job.out_items, number)
            item.start, item.table, item.token = start, job.blocks + own * job.blocks_stride, token
            item.first, item.pairs = first, min(8, pairs - first)
            item.part, item.slot = part if split else -1, own_slot if split else 0
            item.paired, item.end = 0, start + count
            number += 1
            own_slot += parts
    if split:
        slot += parts * ((pairs + 7) // 8)
    return number, slot


def _write_logit_tokens(job: PrepareInputsJob) -> None:
    """Call it when the rows' first tokens are known."""
    for sample in range(job.num_samples):
        row = read_i64(job.sources + 8 * sample)
        last = read_i64(job.out_row_starts + 8 * row) + read_i64(job.counts + 8 * row) - 1
        write_i64(job.out_logit_tokens + 8 * sample, last)


def prepare(job: PrepareInputsJob) -> None:
    """Writes the job's results."""
    token = item = slot = 0
    items, room, group, most = job.out_items, job.num_items, job.group, job.joined
    for row in range(job.num_rows):
        write_i64(job.out_row_starts + 8 * row, token)
        item, slot = _write_items(job, row, token, item, slot)
        if most > 0 and join_item(items, item, most, group, job.block_size, items + ITEM * (room - 1)):
            item -= 1
            room -= 1
        token = _write_tokens(job, row, token)
    sort_items(items, item, group)
    write_i64(job.out_made, item)
    _write_logit_tokens(job)


@compiled
def prepare_inputs(job: PrepareInputsJob) -> None:
    """Writes the job's results."""
    prepare(job)
