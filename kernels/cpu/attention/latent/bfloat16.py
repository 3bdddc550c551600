"""Attention over latents: the operations of kernels.cpu.attention.attention where one vector of a position is
the key of all heads, and its first values are their value.

    plane [B, 1, S, D], of which value_dim values are mixed; a row r of 16 consecutive slots
    row pair r // 2:   [D] words; half r % 2 of word d is latent[d]

So a position is kept once. Items, parts, softmax and mixing are those of keys and values; scores are
kernels.cpu.attention.latent.scores.
"""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.latent.scores import latent_loops
from kernels.cpu.attention.loops import BFLOAT16
from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, read_u16, write_u16

_LOOPS = latent_loops(BFLOAT16)


@operation
def latent_attention(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    """key_cache and value_cache are the same plane."""
    attend_units(_LOOPS, record, first, count, thread)


@operation
def store_latents(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1, of one head: the record's keys. It has no values."""
    head_dim = record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.slot_rows + 8 * token)
        source, to = record.key + token * record.stride, record.key_cache + row // 2 * 4 * head_dim
        for d in range(head_dim):
            write_u16(to + 2 * (row % 2) + 4 * d, read_u16(source + 2 * d))
