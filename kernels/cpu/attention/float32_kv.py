"""Attention in float32: the operations of bfloat16, on float32 keys and values.

    keys     row group r // 16:  [D, 16] float32; number (d, r % 16) is key[d]
    values   row r:              [D] float32

So sums run over dimensions and positions one by one, as kernels.cpu.attention.attention describes it.
"""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.loops import FLOAT32
from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.attention.split_kv import combine_rows
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, read_u32, write_u32


@operation
def attention_float32(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(FLOAT32, record, first, count, thread)


@operation
def combine_parts_float32(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    combine_rows(FLOAT32.element, record, first, count, thread)


def _store_row(key: int, value: int, k_to: int, v_to: int, head_dim: int) -> None:
    """A head of a token."""
    for d in range(head_dim):
        write_u32(k_to + 64 * d, read_u32(key + 4 * d))
        write_u32(v_to + 4 * d, read_u32(value + 4 * d))


@operation
def store_kv_float32(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    heads, head_dim = record.heads, record.head_dim
    for token in range(first, first + count):
        for head in range(heads):
            row = read_i64(record.slot_rows + 8 * (token * heads + head))
            source = token * record.stride + 4 * head * head_dim
            k_to = record.key_cache + row // 16 * 64 * head_dim + 4 * (row % 16)
            v_to = record.value_cache + 4 * head_dim * row
            _store_row(record.key + source, record.value + source, k_to, v_to, head_dim)
