"""Whether a step fits the rows of a worker: one pass, instead of some thirty calls of numpy.

Rows compute [R] and sample [A]. It fits when

    rows      are in use, each there once; start <= num_computed; 0 < count; start + count <= num_tokens,
              and <= num_blocks * block size
    samples   are of rows, each there once, at the end of what their source computes, which is all their
              tokens, and below the greatest length

The reference, which says what does not fit: RowTable.check_compute() and check_sample() (worker.step.rows).
"""

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.isa.vectors import read_i64, write_i64
from kernels.cpu.step.records import CheckStepJob

COMPUTES, SAMPLES = 1, 2
"""Marks of a row that was met."""


def _meet(job: CheckStepJob, row: int, mark: int) -> bool:
    """Whether it is a row, and is met so for the first time."""
    if row < 0 or row >= job.max_rows:
        return False
    at = job.marks + 8 * row
    marks = read_i64(at)
    write_i64(at, marks | mark)
    return marks & mark == 0


def _check_rows(job: CheckStepJob) -> int:
    """How many tokens they compute; -1: they cannot. Writes the largest end."""
    columns, rows = job.columns, job.num_rows
    tokens = 0
    for i in range(rows):
        row = read_i64(columns + 8 * i)
        start, count = read_i64(columns + 8 * (rows + i)), read_i64(columns + 8 * (2 * rows + i))
        end = start + count
        if not _meet(job, row, COMPUTES) or count <= 0:
            return -1
        if end > read_i64(job.num_tokens + 8 * row) or start > read_i64(job.num_computed + 8 * row):
            return -1
        if end > read_i64(job.num_blocks + 8 * row) * job.block_size:
            return -1
        job.context = max(job.context, end)
        tokens += count
    return tokens


def _check_samples(job: CheckStepJob) -> int:
    """1: row i samples from the last token of row i, for all of them; 0: otherwise; -1: they cannot."""
    columns, rows, samples = job.columns, job.num_rows, job.num_samples
    in_order = 1 if samples == rows else 0
    for i in range(samples):
        at = columns + 8 * (3 * rows + i)
        row, source = read_i64(at), read_i64(at + 8 * samples)
        if source < 0 or source >= rows or not _meet(job, row, SAMPLES):
            return -1
        end = read_i64(columns + 8 * (rows + source)) + read_i64(columns + 8 * (2 * rows + source))
        if read_i64(job.num_tokens + 8 * row) != end or end >= job.max_length:
            return -1
        if source != i:
            in_order = 0
    return in_order


def _forget(job: CheckStepJob, first: int, count: int) -> None:
    """The marks of these rows."""
    for i in range(count):
        row = read_i64(first + 8 * i)
        if 0 <= row < job.max_rows:
            write_i64(job.marks + 8 * row, 0)


def check(job: CheckStepJob) -> None:
    """Writes the job's results."""
    job.context = 0
    tokens = _check_rows(job)
    in_order = _check_samples(job) if tokens >= 0 else -1
    job.tokens = tokens if in_order >= 0 else -1
    job.in_order = in_order
    _forget(job, job.columns, job.num_rows)
    _forget(job, job.columns + 24 * job.num_rows, job.num_samples)


@compiled
def check_step(job: CheckStepJob) -> None:
    """Writes the job's results."""
    check(job)
