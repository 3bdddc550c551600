"""kernels.ops.logits.bitmask for rows of logits, 32 tokens at a time, from the bits as grammars write them.

A word that allows all of its tokens costs a look, one that allows none is written without being read: most
words of a grammar's mask are one or the other.
"""

from math import inf
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.vectors import BITS, F32S, I16, LANES, load, read_i64, splat, store, word
from kernels.cpu.sampling.records import BitmaskRecord
from kernels.cpu.sampling.vector_loops import read_i32, write_f32

WORD = 32
"""Tokens of a word."""


@intrinsic(types.void(types.int64, types.int64))
def _keep_bits(builder: Any, x: Any, bits: Any) -> None:
    """Masks those of 32 logits whose bit is not set. x, bits: addresses."""
    for half in range(WORD // LANES):
        allowed = builder.bitcast(load(builder, builder.add(bits, word(2 * half)), I16), BITS)
        at = builder.add(x, word(4 * LANES * half))
        logits = load(builder, at, F32S)
        store(builder, builder.select(allowed, logits, splat(F32S, -inf)), at)


@intrinsic(types.void(types.int64))
def _mask_all(builder: Any, x: Any) -> None:
    """Masks 32 logits. x: address."""
    for half in range(WORD // LANES):
        store(builder, ir.Constant(F32S, [-inf] * LANES), builder.add(x, word(4 * LANES * half)))


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


@compiled
def mask_rows(record: BitmaskRecord, first: int, count: int, scratch: int) -> None:
    """Masks rows first .. first + count - 1 of U. scratch: is not used."""
    for u in range(first, first + count):
        x = record.logits + 4 * record.vocab_size * read_i64(record.batch_index + 8 * u)
        _mask_row(x, read_i64(record.masks + 8 * u), record.vocab_size)
