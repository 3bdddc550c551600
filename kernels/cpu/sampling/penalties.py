"""kernels.ops.logits.penalties for rows whose histories lie in tables, each token once, however often it is
there; and what becomes of the tables when rows are given tokens.

torch gathers histories, counts and logits first and then reads and writes 32 rows of 4,096 tokens in many
passes: 24 ms.
"""

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import float32
from kernels.cpu.isa.vectors import (
    read_f32,
    read_i32,
    read_i64,
    read_u8,
    write_f32,
    write_i32,
    write_i64,
    write_u8,
)
from kernels.cpu.sampling.records import PenaltiesRecord


def _penalize(record: PenaltiesRecord, u: int, seen: int) -> None:
    vocab_size, slot = record.vocab_size, read_i64(record.slots + 8 * u)
    x = record.logits + 4 * vocab_size * read_i64(record.batch_index + 8 * u)
    length = read_i64(record.lengths + 8 * u)
    history = record.history + 8 * slot * record.history_stride
    counts, strengths = record.counts + 4 * vocab_size * slot, record.strengths + 12 * slot
    repetition, frequency = read_f32(strengths), read_f32(strengths + 4)
    presence = read_f32(strengths + 8)
    for i in range(length):
        token = read_i64(history + 8 * i)
        if read_u8(seen + token):
            continue
        write_u8(seen + token, 1)
        score, count = read_f32(x + 4 * token), read_i32(counts + 4 * token)
        score = float32(score / repetition) if score > 0 else float32(score * repetition)
        score = float32(score - float32(frequency * float32(count)))
        write_f32(x + 4 * token, float32(score - presence) if count > 0 else score)
    for i in range(length):
        write_u8(seen + read_i64(history + 8 * i), 0)


@compiled
def penalize_rows(record: PenaltiesRecord, first: int, count: int, seen: int) -> None:
    """Rows first .. first + count - 1 of U. seen: of [V] bytes, all 0, as they are afterwards."""
    for u in range(first, first + count):
        _penalize(record, u, seen)


@compiled
def note_tokens(record: PenaltiesRecord, first: int, count: int) -> None:
    """Rows first .. first + count - 1 of U: their tokens go to the end of their histories, and are counted; 0
    instead of none. Logits and strengths are not looked at."""
    for u in range(first, first + count):
        row, slot = read_i64(record.batch_index + 8 * u), read_i64(record.slots + 8 * u)
        token = max(read_i64(record.tokens + 8 * row), 0)
        place = slot * record.history_stride + read_i64(record.lengths + 8 * u)
        write_i64(record.history + 8 * place, token)
        times = record.counts + 4 * (slot * record.vocab_size + token)
        write_i32(times, read_i32(times) + 1)
