"""A draw from all tokens of a row, or from those that a limit leaves: kernels.inverse_cdf.

The weights of each chunk of 64 tokens are added up in vectors, and the sum before each chunk is noted. Then
the chunk that the number falls into is known, and only its weights are made as torch makes them. The sums
are not taken token by token, so that they may be off in their last bits. Where these could matter, which is
in one of 100,000 draws from a flat distribution over 152,000 tokens, the answer is that it is not known.
"""

from math import inf

from kernels.cpu.language import float32
from kernels.cpu.sampling_candidates import NOT_KNOWN
from kernels.cpu.sampling_limits import LOG2_E, last_of_mass, lowest_score, next_above, sum_error
from kernels.cpu.sampling_masses import chunk_mass
from kernels.cpu.sampling_scratch import CHUNK_WEIGHTS, COPY, LARGEST, chunk_at, scratch_places
from kernels.cpu.sampling_vectors import CHUNK, LOWEST, WIDE, read_f32, read_f64, weigh, write_f32, write_f64


def _copy_kept(at: int, first_id: int, limit: float, last: int, copy: int) -> None:
    """A chunk with -inf for what is below the limit, and for its equals behind the last token."""
    for i in range(CHUNK):
        score = read_f32(at + 4 * i)
        kept = score > limit or (score == limit and first_id + i <= last)
        write_f32(copy + 4 * i, score if kept else -inf)


def _add_up(
    x: int,
    vocab_size: int,
    chunks: int,
    largest: float,
    rate: float,
    limit: float,
    last: int,
    enough: float,
    scratch: int,
) -> float:
    """The sum of the weights that stay, noted before each chunk. Ends where it exceeds `enough`."""
    before, total, copy = scratch_places(chunks, scratch)[0], 0.0, scratch + COPY
    above = next_above(limit, scratch)
    write_f64(before, 0.0)
    for chunk in range(chunks):
        if read_f32(scratch + LARGEST + 4 * chunk) >= limit:
            at, least = chunk_at(x, vocab_size, chunk, scratch), limit
            if chunk == last // CHUNK:
                _copy_kept(at, chunk * CHUNK, limit, last, copy)
                at = copy
            elif chunk > last // CHUNK:
                least = above
            total += chunk_mass(at, float32(least), largest, rate)
        write_f64(before + 8 * (chunk + 1), total)
        if total > enough:
            break
    return total


def _token_in(
    at: int,
    chunk: int,
    largest: float,
    temperature: float,
    total: float,
    target: float,
    error: float,
    weights: int,
) -> int:
    """The token of a chunk at which the sum exceeds the target; total: of what comes before."""
    weigh(at, largest, temperature, weights, CHUNK // WIDE)
    for i in range(CHUNK):
        before, total = total, total + read_f64(weights + 8 * i)
        if total > target:
            certain = total - target > error and (before == 0 or target - before >= error)
            return chunk * CHUNK + i if certain else NOT_KNOWN
    return NOT_KNOWN


def draw_from_all(
    x: int,
    vocab_size: int,
    chunks: int,
    largest: float,
    temperature: float,
    top_p: float,
    min_p: float,
    u: float,
    scratch: int,
) -> int:
    """A token; NOT_KNOWN where torch is to choose it."""
    limit, last, total = LOWEST, vocab_size, 0.0
    if top_p < 1:
        last, total = last_of_mass(x, vocab_size, chunks, largest, temperature, top_p, scratch)
        if last == NOT_KNOWN:
            return NOT_KNOWN
        limit = read_f32(x + 4 * last)
    if min_p > 0:
        lowest = lowest_score(largest, temperature, min_p, scratch)
        if lowest > limit:
            limit, last, total = lowest, vocab_size, 0.0
    rate, enough = LOG2_E / temperature, u * total if total > 0 else inf
    reached = _add_up(x, vocab_size, chunks, largest, rate, limit, last, enough, scratch)
    total = total if total > 0 else reached
    target, chunk, before = u * total, 0, scratch_places(chunks, scratch)[0]
    while chunk + 1 < chunks and read_f64(before + 8 * (chunk + 1)) <= target:
        chunk += 1
    _copy_kept(chunk_at(x, vocab_size, chunk, scratch), chunk * CHUNK, limit, last, scratch + COPY)
    token: int = _token_in(
        scratch + COPY,
        chunk,
        largest,
        temperature,
        read_f64(before + 8 * chunk),
        target,
        sum_error(vocab_size) * total,
        scratch + CHUNK_WEIGHTS,
    )
    return token
