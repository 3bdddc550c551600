"""What choosing a token from a row of logits needs beside the row, and where it lies in a thread's scratch.

    row       what is known of the row, 8 bytes each: ROW
    last      the row's last chunk, if it is not whole, padded with -inf
    copy      of a chunk, with -inf where a filter leaves nothing
    chunk     [64] float64 and [64] int32: weights of a chunk, and where in the buckets they go
    buckets   [256, 8] float64: see kernels.cpu.sampling.vector_loops
    largest   [chunks] float32: of each chunk, where no other operation has found them
    before    [chunks + 1] float64: the sum of the weights before each chunk, and of all
    x, ids, weights   [V] float32, int32, float64: the candidates, by ascending id
    cut       of kernels.cpu.sampling.candidates.cut()

V is padded to whole chunks.
"""

from math import inf

from kernels.cpu.isa.doubles import WIDE
from kernels.cpu.isa.vectors import read_f32, read_i64, write_f32, write_i64
from kernels.cpu.sampling.vector_loops import BUCKETS, CHUNK, chunk_largest

ROW = (
    "x",  # address of its logits
    "vocab_size",
    "chunks",  # how many
    "largest",  # address of [chunks] float32: the largest logit of each chunk
    "best",  # float64: the largest logit
    "temperature",  # float64
)
X, VOCAB_SIZE, CHUNKS, LARGEST, BEST, TEMPERATURE = range(0, 8 * len(ROW), 8)
LAST = 64
COPY = LAST + 4 * CHUNK
CHUNK_WEIGHTS = COPY + 4 * CHUNK
CHUNK_SUMS = CHUNK_WEIGHTS + 8 * CHUNK
SUMS = CHUNK_SUMS + 4 * CHUNK
FOUND = SUMS + 8 * WIDE * BUCKETS


def _places(chunks: int, scratch: int) -> tuple[int, int, int, int, int]:
    before = scratch + FOUND + 4 * chunks
    x = before + 8 * (chunks + 1)
    ids = x + 4 * CHUNK * chunks
    weights = ids + 4 * CHUNK * chunks
    return before, x, ids, weights, weights + 8 * CHUNK * chunks


def scratch_places(scratch: int) -> tuple[int, int, int, int, int]:
    """Addresses of before, x, ids, weights and cut."""
    return _places(read_i64(scratch + CHUNKS), scratch)


def cut_bytes(n: int) -> int:
    """Bytes that cut() needs: scores, places and weights of those that are left."""
    return 16 * (n + 8)


def scratch_bytes(vocab_size: int) -> int:
    """What one thread needs."""
    chunks = -(-vocab_size // CHUNK)
    return _places(chunks, 0)[4] + cut_bytes(CHUNK * chunks)


def begin_row(x: int, vocab_size: int, largest: int, scratch: int) -> None:
    """Notes which row it is, and copies its last tokens, where they are no whole chunk. largest: see ROW; 0:
    finds them."""
    write_i64(scratch + X, x)
    write_i64(scratch + VOCAB_SIZE, vocab_size)
    write_i64(scratch + CHUNKS, (vocab_size + CHUNK - 1) // CHUNK)
    write_i64(scratch + LARGEST, largest if largest != 0 else scratch + FOUND)
    whole = vocab_size // CHUNK * CHUNK
    if whole < vocab_size:
        for i in range(CHUNK):
            token = whole + i
            write_f32(scratch + LAST + 4 * i, read_f32(x + 4 * token) if token < vocab_size else -inf)
    if largest == 0:
        chunk_largest(x, vocab_size, scratch + FOUND)


def logits_at(chunk: int, scratch: int) -> int:
    """The address of a chunk's logits."""
    whole = (chunk + 1) * CHUNK <= read_i64(scratch + VOCAB_SIZE)
    return read_i64(scratch + X) + 4 * CHUNK * chunk if whole else scratch + LAST


def logit_of(token: int, scratch: int) -> float:
    """The token's logit."""
    return read_f32(logits_at(token // CHUNK, scratch) + 4 * (token % CHUNK))
