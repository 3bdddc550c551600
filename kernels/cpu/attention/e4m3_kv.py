"""Attention on keys and values of 8 bits, float8 e4m3 (kernels.cpu.isa.e4m3), in bfloat16 or float32.

    stored = e4m3(min(max(x, -448), 448))          nearest, ties to even; NaN stays NaN

The order of values is that of the dtype which attention computes in (kernels.cpu.attention.bfloat16_kv,
kernels.cpu.attention.float32_kv), a byte in place of each. Loops widen what they load, exactly: so a result
is that of attention on a cache of that dtype which holds these numbers, bit for bit. Half the memory of
bfloat16 and a quarter of float32, to hold and to read. The scale is 1 for all heads: keys and values of the
models that are known lie well within 448, and a scale moves what is lost from large numbers to small ones.
"""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.loops import BFLOAT16_OF_E4M3, FLOAT32_OF_E4M3
from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.e4m3 import code_of
from kernels.cpu.isa.vectors import read_i64, read_u16, read_u32, write_u8


@operation
def attention_of_e4m3(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(BFLOAT16_OF_E4M3, record, first, count, thread)


@operation
def attention_float32_of_e4m3(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(FLOAT32_OF_E4M3, record, first, count, thread)


def _store_row(key: int, value: int, k_to: int, v_to: int, head_dim: int) -> None:
    """A head of a token, of bfloat16. Pairs of keys are 32 bytes apart, values 2."""
    for d in range(head_dim):
        write_u8(k_to + d // 2 * 32 + d % 2, code_of(read_u16(key + 2 * d) << 16))
        write_u8(v_to + 2 * d, code_of(read_u16(value + 2 * d) << 16))


def _store_row_float32(key: int, value: int, k_to: int, v_to: int, head_dim: int) -> None:
    """A head of a token, of float32. Keys are 16 bytes apart."""
    for d in range(head_dim):
        write_u8(k_to + 16 * d, code_of(read_u32(key + 4 * d)))
        write_u8(v_to + d, code_of(read_u32(value + 4 * d)))


@operation
def store_e4m3(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    """Threads may write neighbouring bytes, and never the same one."""
    heads, head_dim = record.heads, record.head_dim
    for token in range(first, first + count):
        for head in range(heads):
            row = read_i64(record.slot_rows + 8 * (token * heads + head))
            source = token * record.stride + 2 * head * head_dim
            k_to = record.key_cache + row // 16 * 16 * head_dim + 2 * (row % 16)
            v_to = record.value_cache + row // 2 * 2 * head_dim + row % 2
            _store_row(record.key + source, record.value + source, k_to, v_to, head_dim)


@operation
def store_e4m3_of_float32(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    heads, head_dim = record.heads, record.head_dim
    for token in range(first, first + count):
        for head in range(heads):
            row = read_i64(record.slot_rows + 8 * (token * heads + head))
            source = token * record.stride + 4 * head * head_dim
            k_to = record.key_cache + row // 16 * 16 * head_dim + row % 16
            v_to = record.value_cache + row * head_dim
            _store_row_float32(record.key + source, record.value + source, k_to, v_to, head_dim)
