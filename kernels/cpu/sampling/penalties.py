"""kernels.ops.logits.penalties for rows whose histories lie in tables, each token once, however often it is
there; and what becomes of the tables when rows are given tokens.

torch gathers histories, counts and logits first and then reads and writes 32 rows of 4,096 tokens in many
passes: 24 ms.
"""

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import float32
from kernels.cpu.isa.vectors import read_i64
from kernels.cpu.sampling.vector_loops import (
    read_f32,
    read_i32,
    read_u8,
    write_f32,
    write_i32,
    write_i64,
    write_u8,
)

# Of a record, each of 8 bytes: addresses, sizes and strides.
FIELDS = (
    "logits",  # [A, V] float32, contiguous, changed
    "vocab_size",  # V
    "batch_index",  # [U] int64: which rows of the logits
    "slots",  # [U] int64: where they are in what follows
    "lengths",  # [U] int64: tokens of the history
    "history",  # [slots, L] int64
    "history_stride",  # L
    "counts",  # [slots, V] int32
    "strengths",  # [slots, 3] float32
    "tokens",  # [A] int64: what rows were given; negative: nothing
)
_LOGITS, _V, _INDEX, _SLOTS, _LENGTHS, _HISTORY, _STRIDE, _COUNTS, _STRENGTHS, _TOKENS = range(
    0, 8 * len(FIELDS), 8
)


def _penalize(record: int, u: int, seen: int) -> None:
    vocab_size, slot = read_i64(record + _V), read_i64(read_i64(record + _SLOTS) + 8 * u)
    x = read_i64(record + _LOGITS) + 4 * vocab_size * read_i64(read_i64(record + _INDEX) + 8 * u)
    length = read_i64(read_i64(record + _LENGTHS) + 8 * u)
    history = read_i64(record + _HISTORY) + 8 * slot * read_i64(record + _STRIDE)
    counts = read_i64(record + _COUNTS) + 4 * vocab_size * slot
    strengths = read_i64(record + _STRENGTHS) + 12 * slot
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
def penalize_rows(record: int, first: int, count: int, seen: int) -> None:
    """Rows first .. first + count - 1 of U. record: address of FIELDS. seen: of [V] bytes, all 0, as they are
    afterwards."""
    for u in range(first, first + count):
        _penalize(record, u, seen)


@compiled
def note_tokens(record: int, first: int, count: int) -> None:
    """Rows first .. first + count - 1 of U: their tokens go to the end of their histories, and are counted; 0
    instead of none. record: address of FIELDS; logits and strengths are not looked at."""
    for u in range(first, first + count):
        row, slot = read_i64(read_i64(record + _INDEX) + 8 * u), read_i64(read_i64(record + _SLOTS) + 8 * u)
        token = max(read_i64(read_i64(record + _TOKENS) + 8 * row), 0)
        place = slot * read_i64(record + _STRIDE) + read_i64(read_i64(record + _LENGTHS) + 8 * u)
        write_i64(read_i64(record + _HISTORY) + 8 * place, token)
        times = read_i64(record + _COUNTS) + 4 * (slot * read_i64(record + _V) + token)
        write_i32(times, read_i32(times) + 1)
