"""Attention in bfloat16: kernels.cpu.attention.attention on pairs of keys and values."""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.loops import BFLOAT16
from kernels.cpu.attention.records import AttentionRecord
from kernels.cpu.compiler.cache import operation


@operation
def attention_bfloat16(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(BFLOAT16, record, first, count, thread)
