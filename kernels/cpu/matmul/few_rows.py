"""The product of some rows with a packed weight (kernels.cpu.matmul.gemm) where registers are few."""

from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import i32x8, i32x16
from kernels.cpu.isa.doubles import load_f32x8, store_f32x8
from kernels.cpu.isa.simd import load_f32, prefetch, reread, store_i32
from kernels.cpu.isa.vectors import LANES, read_i64, read_u32
from kernels.cpu.matmul.many_rows import AT_ONCE, MANY
from kernels.cpu.matmul.records import LinearRecord
from kernels.cpu.matmul.results import store_columns
from kernels.cpu.matmul.words import Words
from kernels.cpu.runtime.records import ProductRecord
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS, following_block, last_block

FEW, LEAST, LARGEST = 3, 3, 6
WORDS = 160
EIGHT = 8
NEAR = 24 << 10
SUMS = 4 * COLUMNS


def _tile(
    kind: Static[Words],
    rows: Static[int],
    eights: Static[int],
    words: int,
    x: int,
    pitch: int,
    w: int,
    sums: int,
    soon: int,
) -> None:
    x_rows = [reread(x + pitch * m) for m in unroll(range(rows))]
    totals = [
        load_f32x8(sums + SUMS * (i // eights) + 32 * (i % eights)) for i in unroll(range(rows * eights))
    ]
    across = kind.size * COLUMNS
    for k in range(words):
        for line in unroll(range(0, EIGHT * kind.size * eights, 64)):
            prefetch(soon + across * k + line)
        for part in unroll(range(kind.parts)):
            at, offset = reread(w) + across * k, 4 * (kind.parts * k + part)
            weights = [
                kind.weights(kind.load_eight(at + EIGHT * kind.size * v), part) for v in unroll(range(eights))
            ]
            for m in unroll(range(rows)):
                value = i32x8(read_u32(x_rows[m] + offset))
                for v in unroll(range(eights)):
                    totals[eights * m + v] = kind.add(totals[eights * m + v], weights[v], value)
    for i in unroll(range(rows * eights)):
        store_f32x8(sums + SUMS * (i // eights) + 32 * (i % eights), totals[i])


def _add_words(
    kind: Static[Words],
    whole: Static[bool],
    words: int,
    rows: int,
    x: int,
    pitch: int,
    w: int,
    sums: int,
    soon: int,
) -> None:
    tiles, done = (rows + LARGEST - 1) // LARGEST, 0
    for i in range(tiles):
        size = (rows - done + tiles - i - 1) // (tiles - i)
        at, to = x + pitch * done, sums + SUMS * done
        for each in unroll(range(LEAST, LARGEST + 1)):
            if size == each:
                if whole and each <= 4:
                    for half in range(2):
                        _tile(
                            kind,
                            each,
                            3,
                            words,
                            at,
                            pitch,
                            w + 24 * kind.size * half,
                            to + 96 * half,
                            soon + 24 * kind.size * half,
                        )
                else:
                    for v in range(VECTORS if whole else 1):
                        _tile(
                            kind,
                            each,
                            2,
                            words,
                            at,
                            pitch,
                            w + LANES * kind.size * v,
                            to + 64 * v,
                            soon + LANES * kind.size * v,
                        )
        done += size


def _multiply(
    kind: Static[Words],
    whole: Static[bool],
    record: ProductRecord,
    x: int,
    pitch: int,
    w: int,
    row: int,
    rows: int,
    strip: int,
    sums: int,
    soon: int,
) -> None:
    words, across = record.words, kind.size * COLUMNS
    pieces = (words + WORDS - 1) // WORDS
    step = (words + pieces - 1) // pieces
    for i in range(VECTORS * rows):
        store_i32(sums + 64 * i, i32x16(0))
    for first in range(0, words, step):
        some, at = min(step, words - first), w + across * first
        left = across * (words - first)
        following = at + NEAR if left > NEAR else soon + NEAR - left
        _add_words(kind, whole, some, rows, x + 4 * kind.parts * first, pitch, at, sums, following)
    for v in range(VECTORS if whole else 1):
        out = record.out + (row * record.columns + LANES * (strip + v)) * record.out_bytes
        bias, columns = load_f32(record.params + 64 * (strip + v)), record.columns - LANES * (strip + v)
        for m in range(rows):
            at = out + record.columns * record.out_bytes * m
            store_columns(at, record.out_bytes, load_f32(sums + SUMS * m + 64 * v) + bias, columns)


def multiply_few(
    kind: Static[Words],
    record: LinearRecord,
    x: int,
    pitch: int,
    row: int,
    rows: int,
    strip: int,
    end: int,
    thread: int,
) -> int:
    if rows < FEW or rows >= MANY:
        return strip
    words, size = record.words, LANES * kind.size
    strips = (record.columns + LANES - 1) // LANES
    last, sums = last_block(strips, thread), read_i64(record.scratch + 8 * thread) + 64 * AT_ONCE
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w = record.weight + block * words * VECTORS * size + inner * size
        soon = w + words * VECTORS * size
        if block == last:
            soon = following_block(record.following, thread, w)
        if inner == 0 and (strip + VECTORS <= end or end == strips):
            _multiply(kind, True, record, x, pitch, w, row, rows, strip, sums, soon)
            strip += VECTORS
        else:
            _multiply(kind, False, record, x, pitch, w, row, rows, strip, sums, soon)
            strip += 1
    return end
