"""The inputs of a step from the rows that compute: one pass, instead of some thirty calls of numpy.

Of a row that computes `count` tokens from position `start` on:

    tokens     token ids, positions, length of its prompt
    slots      where the keys and values of each token and head go (kernels.ops.attention.store_kv.slot_rows)
    logits     the last token of each row that a sample is taken from
    items      of attention (kernels.cpu.attention.work_items): up to 8 (query, head) pairs each, of a part
    of the
               positions where the row is split, or of two rows that begin with the same blocks; long ones
               first, and behind all of them those that are in another one's company

The caches are cold when a step begins, since the model's weights have gone through them: what a call
costs in a loop, it costs three times here.
"""

from kernels.cpu.attention.vector_loops import PART
from kernels.cpu.attention.work_items_kernel import COMPANY, ITEM, join_item, sort_items
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.isa.vectors import read_i64, write_i64

SPLIT_TOKENS = 8
"""As in kernels.cpu.attention.work_items."""


def _write_tokens(job: int, row: int, token: int) -> int:
    """Of one row of the step, from `token` on. Returns the next token."""
    own, start, count = (
        read_i64(read_i64(job + 40) + 8 * row),
        read_i64(read_i64(job + 48) + 8 * row),
        read_i64(read_i64(job + 56) + 8 * row),
    )
    ids = read_i64(job) + own * read_i64(job + 8)
    table = read_i64(job + 16) + own * read_i64(job + 24)
    prompt_len = read_i64(read_i64(job + 32) + 8 * own)
    block_size, kv_heads = read_i64(job + 72), read_i64(job + 80)
    to_ids, to_positions, to_prompt_lens, to_slots = (
        read_i64(job + 96),
        read_i64(job + 104),
        read_i64(job + 112),
        read_i64(job + 120),
    )
    for position in range(start, start + count):
        write_i64(to_ids + 8 * token, read_i64(ids + 8 * position))
        write_i64(to_positions + 8 * token, position)
        write_i64(to_prompt_lens + 8 * token, prompt_len)
        block = read_i64(table + 8 * (position // block_size))
        for head in range(kv_heads):
            slot = (block * kv_heads + head) * block_size + position % block_size
            write_i64(to_slots + 8 * (token * kv_heads + head), slot)
        token += 1
    return token


def _write_items(job: int, row: int, token: int, item: int, place: int) -> tuple[int, int]:
    """Of one row of the step, whose first token is `token`. place: the next one for a part's result. Returns
    the next item, and the next place."""
    own, start, count = (
        read_i64(read_i64(job + 40) + 8 * row),
        read_i64(read_i64(job + 48) + 8 * row),
        read_i64(read_i64(job + 56) + 8 * row),
    )
    pairs, split = count * read_i64(job + 88), False
    parts = 1
    if count <= SPLIT_TOKENS and start + count > read_i64(job + 168):
        parts, split = (start + count + PART - 1) // PART, True
    for first in range(0, pairs, 8):
        for part in range(parts):
            at = read_i64(job + 128) + ITEM * item
            write_i64(at, start)
            write_i64(at + 8, read_i64(job + 16) + own * read_i64(job + 24))
            write_i64(at + 16, token)
            write_i64(at + 24, first)
            write_i64(at + 32, min(8, pairs - first))
            write_i64(at + 40, part if split else -1)
            write_i64(at + 48, place if split else 0)
            write_i64(at + COMPANY, 0)
            item += 1
            place += 1 if split else 0
    return item, place


def _write_logit_tokens(job: int) -> None:
    """Call it when the rows' first tokens are known."""
    for sample in range(read_i64(job + 160)):
        row = read_i64(read_i64(job + 152) + 8 * sample)
        last = read_i64(read_i64(job + 136) + 8 * row) + read_i64(read_i64(job + 56) + 8 * row) - 1
        write_i64(read_i64(job + 144) + 8 * sample, last)


@compiled
def prepare_inputs(job: int) -> None:
    """job: address of 25 words, all addresses of int64 but for numbers:

    0   token ids of all rows, bytes from row to row; block tables, bytes from row to row; prompt lengths
    40  rows of the step [R], starts [R], counts [R]; R; block size, KV heads, query heads per KV head
    96  results: token ids, positions and prompt lengths [T]; slots [T * K]; items [I, 9]; row starts [R];
        tokens to take logits of [A]
    152 which rows of the step are sampled from [A]; A; rows of more positions are split
    176 two rows of no more positions together may be one item; I; result: how many items are not in company
    """
    token = item = place = 0
    items, room = read_i64(job + 128), read_i64(job + 184)
    group, most = read_i64(job + 88), read_i64(job + 176)
    for row in range(read_i64(job + 64)):
        write_i64(read_i64(job + 136) + 8 * row, token)
        item, place = _write_items(job, row, token, item, place)
        if most > 0 and join_item(items, item, most, group, read_i64(job + 72), items + ITEM * (room - 1)):
            item -= 1
            room -= 1
        token = _write_tokens(job, row, token)
    sort_items(items, item, group)
    write_i64(read_i64(job + 192), item)
    _write_logit_tokens(job)
