"""What choosing a token from a row of logits needs beside the row, and where it lies in a thread's scratch.

    last      the row's last chunk, if it is not whole, padded with -inf
    copy      of a chunk, with -inf where a filter leaves nothing
    chunk     [64] float64 and [64] int32: weights of a chunk, and where in the buckets they go
    buckets   [256, 8] float64: see kernels.cpu.sampling_masses
    largest   [chunks] float32: of each chunk
    before    [chunks + 1] float64: the sum of the weights before each chunk, and of all
    x, ids, weights   [V] float32, int32, float64: the candidates, by ascending id
    cut       of kernels.cpu.sampling_cut

V is padded to whole chunks.
"""

from math import inf

from kernels.cpu.sampling_cut import cut_bytes
from kernels.cpu.sampling_masses import BUCKETS
from kernels.cpu.sampling_vectors import CHUNK, WIDE, read_f32, write_f32

COPY = 4 * CHUNK
CHUNK_WEIGHTS = COPY + 4 * CHUNK
CHUNK_SUMS = CHUNK_WEIGHTS + 8 * CHUNK
SUMS = CHUNK_SUMS + 4 * CHUNK
LARGEST = SUMS + 8 * WIDE * BUCKETS


def scratch_places(chunks: int, scratch: int) -> tuple[int, int, int, int, int]:
    """Addresses of before, x, ids, weights and cut."""
    before = scratch + LARGEST + 4 * chunks
    x = before + 8 * (chunks + 1)
    ids = x + 4 * CHUNK * chunks
    weights = ids + 4 * CHUNK * chunks
    return before, x, ids, weights, weights + 8 * CHUNK * chunks


def scratch_bytes(vocab_size: int) -> int:
    """What one thread needs."""
    chunks = -(-vocab_size // CHUNK)
    return int(scratch_places(chunks, 0)[4] + cut_bytes(CHUNK * chunks))


def copy_last(x: int, vocab_size: int, scratch: int) -> None:
    """The row's last tokens, where they are no whole chunk."""
    whole = vocab_size // CHUNK * CHUNK
    for i in range(CHUNK):
        token = whole + i
        write_f32(scratch + 4 * i, read_f32(x + 4 * token) if token < vocab_size else -inf)


def chunk_at(x: int, vocab_size: int, chunk: int, scratch: int) -> int:
    """The address of a chunk."""
    return x + 4 * CHUNK * chunk if (chunk + 1) * CHUNK <= vocab_size else scratch
