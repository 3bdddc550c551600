"""Penalties and bitmasks: kernels.ops.sampling.logits_processors for rows of logits, in place.

A history is read token by token, each once, however often it is there: torch gathers histories, counts and
logits first and then reads and writes 32 rows of 4,096 tokens in many passes: 24 ms. A bitmask is read 32
tokens at a time, as grammars write it: a word that allows all of its tokens costs a look, one that allows
none is written without being read; most words of a grammar's mask are one or the other."""

from math import inf

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import float32, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.lanes import mask_of_bits
from kernels.cpu.isa.simd import load_f32, select, store_f32
from kernels.cpu.isa.vectors import (
    LANES,
    read_f32,
    read_i32,
    read_i64,
    read_u8,
    read_u16,
    write_f32,
    write_u8,
)
from kernels.cpu.sampling.records import BitmaskRecord, PenaltiesRecord

WORD = 32
"""Tokens of a word."""


def _penalize(record: PenaltiesRecord, u: int, seen: int) -> None:
    x = record.logits + 4 * record.vocab_size * read_i64(record.batch_index + 8 * u)
    length, history = read_i64(record.lengths + 8 * u), read_i64(record.histories + 8 * u)
    counts, strengths = read_i64(record.counts + 8 * u), read_i64(record.strengths + 8 * u)
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


@operation
def penalize_rows(record: PenaltiesRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1 of U."""
    for u in range(first, first + count):
        _penalize(record, u, record.seen + record.vocab_size * thread)


def _keep_bits(x: int, bits: int) -> None:
    """Masks those of 32 logits whose bit is not set. x, bits: addresses."""
    for half in unroll(range(WORD // LANES)):
        allowed, at = mask_of_bits(read_u16(bits + 2 * half)), x + 4 * LANES * half
        store_f32(at, select(allowed, load_f32(at), f32x16(-inf)))


def _mask_all(x: int) -> None:
    """Masks 32 logits. x: address."""
    for half in unroll(range(WORD // LANES)):
        store_f32(x + 4 * LANES * half, f32x16(-inf))


def _mask_row(x: int, bits: int, vocab_size: int) -> None:
    whole = vocab_size // WORD
    for w in range(whole):
        allowed = read_i32(bits + 4 * w)
        if allowed == 0:
            _mask_all(x + 4 * WORD * w)
        elif allowed != -1:
            _keep_bits(x + 4 * WORD * w, bits + 4 * w)
    for token in range(WORD * whole, vocab_size):
        if (read_i32(bits + 4 * whole) >> (token - WORD * whole)) & 1 == 0:
            write_f32(x + 4 * token, -inf)


@operation
def mask_rows(record: BitmaskRecord, first: int, count: int, thread: int) -> None:
    """Masks rows first .. first + count - 1 of U."""
    for u in range(first, first + count):
        x = record.logits + 4 * record.vocab_size * read_i64(record.batch_index + 8 * u)
        _mask_row(x, read_i64(record.masks + 8 * u), record.vocab_size)
