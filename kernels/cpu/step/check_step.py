"""Whether a step fits the rows of a worker: one pass, instead of some thirty calls of numpy.

Rows compute [R] and sample [A]. It fits when

    rows      are in use, each there once; start <= num_computed; 0 < count; start + count <= num_tokens,
              and <= num_blocks * block size
    samples   are of rows, each there once, at the end of what their source computes, which is all their
              tokens, and below the greatest length

What does not fit is said by the twin, RowTable.check_compute() and check_sample() (worker.step.rows).
"""

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.isa.vectors import read_i64, write_i64

COMPUTES, SAMPLES = 1, 2
"""Marks of a row that was met."""


def _meet(job: int, row: int, mark: int) -> bool:
    """Whether it is a row, and is met so for the first time."""
    if row < 0 or row >= read_i64(job + 32):
        return False
    at = read_i64(job + 24) + 8 * row
    marks = read_i64(at)
    write_i64(at, marks | mark)
    return marks & mark == 0


def _check_rows(job: int) -> int:
    """How many tokens they compute; -1: they cannot. Writes the largest end."""
    columns, rows = read_i64(job + 56), read_i64(job + 64)
    tokens = 0
    for i in range(rows):
        row = read_i64(columns + 8 * i)
        start, count = read_i64(columns + 8 * (rows + i)), read_i64(columns + 8 * (2 * rows + i))
        end = start + count
        if not _meet(job, row, COMPUTES) or count <= 0:
            return -1
        if end > read_i64(read_i64(job) + 8 * row) or start > read_i64(read_i64(job + 8) + 8 * row):
            return -1
        if end > read_i64(read_i64(job + 16) + 8 * row) * read_i64(job + 40):
            return -1
        write_i64(job + 88, max(read_i64(job + 88), end))
        tokens += count
    return tokens


def _check_samples(job: int) -> int:
    """1: row i samples from the last token of row i, for all of them; 0: otherwise; -1: they cannot."""
    columns, rows, samples = read_i64(job + 56), read_i64(job + 64), read_i64(job + 72)
    in_order = 1 if samples == rows else 0
    for i in range(samples):
        at = columns + 8 * (3 * rows + i)
        row, source = read_i64(at), read_i64(at + 8 * samples)
        if source < 0 or source >= rows or not _meet(job, row, SAMPLES):
            return -1
        end = read_i64(columns + 8 * (rows + source)) + read_i64(columns + 8 * (2 * rows + source))
        if read_i64(read_i64(job) + 8 * row) != end or end >= read_i64(job + 48):
            return -1
        if source != i:
            in_order = 0
    return in_order


def _forget(job: int, first: int, count: int) -> None:
    """The marks of these rows."""
    for i in range(count):
        row = read_i64(first + 8 * i)
        if 0 <= row < read_i64(job + 32):
            write_i64(read_i64(job + 24) + 8 * row, 0)


@compiled
def check_step(job: int) -> None:
    """job: address of 13 words:

    0   addresses of num_tokens, num_computed, num_blocks, and of marks: int64, one for each row, all 0
    32  rows, block size, greatest length of a row
    56  address of the columns, int64: rows, starts, counts [R], sample rows, sample sources [A]; R; A
    80  results: tokens, -1 where the step does not fit; the largest end; 1: each row that computes samples,
        in the same order
    """
    columns, rows, samples = read_i64(job + 56), read_i64(job + 64), read_i64(job + 72)
    write_i64(job + 88, 0)
    tokens = _check_rows(job)
    in_order = _check_samples(job) if tokens >= 0 else -1
    write_i64(job + 80, tokens if in_order >= 0 else -1)
    write_i64(job + 96, in_order)
    _forget(job, columns, rows)
    _forget(job, columns + 24 * rows, samples)
