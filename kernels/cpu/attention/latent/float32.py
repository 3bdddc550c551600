"""Attention over latents in float32: kernels.cpu.attention.latent.bfloat16, with a row of [D] float32 per
slot."""

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.latent.scores import latent_loops
from kernels.cpu.attention.loops import FLOAT32
from kernels.cpu.attention.records import AttentionRecord, StoreKVRecord
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, read_u32, write_u32

_LOOPS = latent_loops(FLOAT32)


@operation
def latent_attention_float32(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(_LOOPS, record, first, count, thread)


@operation
def store_latents_float32(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    head_dim = record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.slot_rows + 8 * token)
        source, to = record.key + token * record.stride, record.key_cache + row * 4 * head_dim
        for d in range(head_dim):
            write_u32(to + 4 * d, read_u32(source + 4 * d))
