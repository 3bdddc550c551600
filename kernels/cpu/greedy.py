"""The first of the largest logits of rows: kernels.greedy_choice, as two operations of a program.

A unit of the first is a piece of a row, so that threads share a single row too. Units go through the first
piece of all rows, then through the second: a thread with the first half of them reads the columns that it
has just written, as the first half of the head's product.
"""

from math import inf

from kernels.cpu.compiler import operation
from kernels.cpu.language import float32
from kernels.cpu.sampling_vectors import (
    CHUNK,
    at_least,
    chunk_largest,
    lowest_bit,
    read_f32,
    read_f64,
    write_f64,
    write_i64,
)
from kernels.cpu.vectors import read_i64

NO_TOKEN = -1
PIECE = 128 * CHUNK
"""Logits: 32 KiB, read in a microsecond or two."""
SCRATCH_BYTES = 4 * PIECE // CHUNK
"""Of a thread: the largest of each chunk."""


def _find_in_piece(x: int, size: int, scratch: int, largest: int) -> int:
    """Writes the largest of so many logits at x to an address, as float64: NaN or +inf where one is. Returns
    its first place; NO_TOKEN where there is none."""
    chunks = size // CHUNK
    if chunks > 0:
        chunk_largest(x, chunks, scratch)
    best, at = float32(-inf), NO_TOKEN
    for chunk in range(chunks):
        score = read_f32(scratch + 4 * chunk)
        if not score < inf:  # or NaN
            write_f64(largest, score)
            return NO_TOKEN
        if score > best:
            best, at = score, chunk
    if at != NO_TOKEN:
        at = CHUNK * at + lowest_bit(at_least(x + 4 * CHUNK * at, best))
    for i in range(CHUNK * chunks, size):
        score = read_f32(x + 4 * i)
        if not score < inf:
            write_f64(largest, score)
            return NO_TOKEN
        if score > best:
            best, at = score, i
    write_f64(largest, best)
    return at


@operation
def find_in_pieces(record: int, first: int, count: int, thread: int) -> None:
    """record: units, address of logits [rows, V] float32, V, rows, address of what is found [units, 2]: the
    largest as float64 and its token, address of the addresses of each thread's scratch memory."""
    logits, vocab_size, rows = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    found, scratch = read_i64(record + 40), read_i64(read_i64(record + 48) + 8 * thread)
    for unit in range(first, first + count):
        row, begin = unit % rows, PIECE * (unit // rows)
        x, at = logits + 4 * (vocab_size * row + begin), found + 16 * unit
        place = _find_in_piece(x, min(PIECE, vocab_size - begin), scratch, at)
        write_i64(at + 8, begin + place if place != NO_TOKEN else NO_TOKEN)


@operation
def merge_pieces(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, address of what is found [pieces, rows, 2], pieces, address of tokens [rows] int64."""
    rows, found, pieces = read_i64(record + 8), read_i64(record + 16), read_i64(record + 24)
    tokens = read_i64(record + 32)
    for row in range(first, first + count):
        best, token = -inf, NO_TOKEN
        for piece in range(pieces):
            at = found + 16 * (rows * piece + row)
            score = read_f64(at)
            if not score < inf:  # or NaN
                token = NO_TOKEN
                break
            if score > best:
                best, token = score, read_i64(at + 8)
        write_i64(tokens + 8 * row, token)
