"""The inputs of a step from the rows that compute: one pass, instead of some thirty calls of numpy.

Of a row that computes `count` tokens from position `start` on:

    tokens     token ids, positions, length of its prompt
    slots      where the keys and values of each token and head go (kernels.store_kv.slot_rows)
    logits     the last token of each row that a sample is taken from
    items      of attention (kernels.block_attention): up to 8 (query, head) pairs each, long ones first

The caches are cold when a step begins, since the model's weights have gone through them: what a call
costs in a loop, it costs three times here.
"""

from kernels.cpu.compiler import compiled
from kernels.cpu.vectors import read_i64, write_i64

ITEM = 40


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


def _write_items(job: int, row: int, token: int, item: int) -> int:
    """Of one row of the step, whose first token is `token`. Returns the next item."""
    own, start, count = (
        read_i64(read_i64(job + 40) + 8 * row),
        read_i64(read_i64(job + 48) + 8 * row),
        read_i64(read_i64(job + 56) + 8 * row),
    )
    pairs = count * read_i64(job + 88)
    for first in range(0, pairs, 8):
        at = read_i64(job + 128) + ITEM * item
        write_i64(at, start)
        write_i64(at + 8, read_i64(job + 16) + own * read_i64(job + 24))
        write_i64(at + 16, token)
        write_i64(at + 24, first)
        write_i64(at + 32, min(8, pairs - first))
        item += 1
    return item


def _end(item: int, group: int) -> int:
    """The last position that an item looks at."""
    return read_i64(item) + (read_i64(item + 24) + read_i64(item + 32) - 1) // group


def _sort(items: int, count: int, group: int) -> None:
    """By _end(), the largest first; a shell sort in place."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            j = i
            while j >= gap and _end(items + ITEM * (j - gap), group) < _end(items + ITEM * j, group):
                for word in range(0, ITEM, 8):
                    one, other = items + ITEM * (j - gap) + word, items + ITEM * j + word
                    value = read_i64(one)
                    write_i64(one, read_i64(other))
                    write_i64(other, value)
                j -= gap
        gap //= 3


def _write_logit_tokens(job: int) -> None:
    """Call it when the rows' first tokens are known."""
    for sample in range(read_i64(job + 160)):
        row = read_i64(read_i64(job + 152) + 8 * sample)
        last = read_i64(read_i64(job + 136) + 8 * row) + read_i64(read_i64(job + 56) + 8 * row) - 1
        write_i64(read_i64(job + 144) + 8 * sample, last)


@compiled
def prepare_inputs(job: int) -> None:
    """job: address of 21 words, all addresses of int64:

    0   token ids of all rows, bytes from row to row; block tables, bytes from row to row; prompt lengths
    40  rows of the step [R], starts [R], counts [R]; R; block size, KV heads, query heads per KV head
    96  results: token ids, positions and prompt lengths [T]; slots [T * K]; items [I, 5]; row starts [R];
        tokens to take logits of [A]
    152 which rows of the step are sampled from [A]; A
    """
    token = item = 0
    for row in range(read_i64(job + 64)):
        write_i64(read_i64(job + 136) + 8 * row, token)
        item = _write_items(job, row, token, item)
        token = _write_tokens(job, row, token)
    _sort(read_i64(job + 128), item, read_i64(job + 88))
    _write_logit_tokens(job)
