"""Attention in bfloat16: kernels.cpu.attention.attention on pairs of keys and values, and what writes these
into the paged cache.

A slot's row r (kernels.ops.attention.store_kv.slot_rows) says where; 16 slots of a block are 16 consecutive
rows.

    keys     row group r // 16:  [D / 2, 16] words; word (d / 2, r % 16) is key[d] | key[d + 1] << 16
    values   row pair  r // 2:   [D] words;         half r % 2 of word d is value[d]

So the scores of 16 positions, and the values of two, are dot products of pairs without any
reordering, as in a packed weight.
"""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.loops import BFLOAT16
from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, read_u16, read_u32, write_u16, write_u32


@operation
def attention_bfloat16(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(BFLOAT16, record, first, count, thread)


def _token(
    token: int,
    key: int,
    value: int,
    stride: int,
    key_cache: int,
    value_cache: int,
    rows: int,
    heads: int,
    head_dim: int,
) -> None:
    for head in range(heads):
        row = read_i64(rows + 8 * (token * heads + head))
        source = token * stride + 2 * head * head_dim
        k_to = key_cache + (row // 16) * 32 * head_dim + 4 * (row % 16)
        for d in range(head_dim // 2):
            write_u32(k_to + 64 * d, read_u32(key + source + 4 * d))
        v_to = value_cache + (row // 2) * 4 * head_dim + 2 * (row % 2)
        for d in range(head_dim):
            write_u16(v_to + 4 * d, read_u16(value + source + 2 * d))


@operation
def store_kv(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1. Tokens differ in their slots, so that threads never write to one
    address."""
    key, value, rows = record.key, record.value, record.slot_rows
    key_cache, value_cache = record.key_cache, record.value_cache
    stride, heads, head_dim = record.stride, record.heads, record.head_dim
    for token in range(first, first + count):
        _token(token, key, value, stride, key_cache, value_cache, rows, heads, head_dim)
