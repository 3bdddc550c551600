"""The inputs of a step from the rows that compute: one pass, instead of some thirty calls of numpy.

Of a row that computes `count` tokens from position `start` on:

    tokens     token ids, positions, length of its prompt
    slots      where the keys and values of each token and head go (kernels.store_kv.slot_rows)
    logits     the last token of each row that a sample is taken from
    items      of attention (kernels.block_attention): up to 8 (query, head) pairs each, of a part of the
               positions where the row is split; long ones first

The caches are cold when a step begins, since the model's weights have gone through them: what a call
costs in a loop, it costs three times here.
"""

from kernels.cpu.attention_vectors import PART
from kernels.cpu.compiler import compiled
from kernels.cpu.vectors import read_i64, write_i64

ITEM = 56
SPLIT_TOKENS = 8
"""As in kernels.block_attention."""


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
            item += 1
            place += 1 if split else 0
    return item, place


def _length(item: int, group: int) -> int:
    """The positions that an item looks at."""
    part = read_i64(item + 40)
    end = read_i64(item) + (read_i64(item + 24) + read_i64(item + 32) - 1) // group + 1
    return min(end - part * PART, PART) if part >= 0 else end


def _sort(items: int, count: int, group: int) -> None:
    """By _length(), the largest first; a shell sort in place."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            j = i
            while j >= gap and _length(items + ITEM * (j - gap), group) < _length(items + ITEM * j, group):
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
    """job: address of 22 words, all addresses of int64:

    0   token ids of all rows, bytes from row to row; block tables, bytes from row to row; prompt lengths
    40  rows of the step [R], starts [R], counts [R]; R; block size, KV heads, query heads per KV head
    96  results: token ids, positions and prompt lengths [T]; slots [T * K]; items [I, 7]; row starts [R];
        tokens to take logits of [A]
    152 which rows of the step are sampled from [A]; A; rows of more positions are split
    """
    token = item = place = 0
    for row in range(read_i64(job + 64)):
        write_i64(read_i64(job + 136) + 8 * row, token)
        item, place = _write_items(job, row, token, item, place)
        token = _write_tokens(job, row, token)
    _sort(read_i64(job + 128), item, read_i64(job + 88))
    _write_logit_tokens(job)
