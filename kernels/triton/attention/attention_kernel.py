"""The kernel of kernels.triton.attention.paged_attention, where it is described."""

import triton
import triton.language as tl

from kernels.triton.attention.attention_tiles import attend
from kernels.triton.attention.merge_chunks import LOG2E, add_chunk, quotient


@triton.jit
def _find_row(query_starts, first_row, num_rows, program, QUERIES: tl.constexpr):
    """Returns the row of a program and the program's number in that row. Row i of n begins at program
    (its first token) // QUERIES + i at the latest, which leaves room for the programs of earlier rows."""
    origin = tl.load(query_starts + first_row)
    low, high = 0, num_rows
    while low + 1 < high:
        middle = (low + high) // 2
        start = (tl.load(query_starts + first_row + middle) - origin) // QUERIES + middle
        low = tl.where(start <= program, middle, low)
        high = tl.where(start <= program, high, middle)
    start = (tl.load(query_starts + first_row + low) - origin) // QUERIES + low
    return first_row + low, program - start


@triton.jit
def _put(parts, stats, at, part, largest, total, valid, inside, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Stores the results of one chunk for merge_chunks(). at: [M] index of each query's head and chunk."""
    tl.store(stats + 2 * at, largest, mask=valid)
    tl.store(stats + 2 * at + 1, total, mask=valid)
    dims = tl.arange(0, DIM)
    tl.store(parts + at[:, None] * HEAD_DIM + dims[None, :], part, mask=inside)


# Triton compiles anew for a number that is 1, or a multiple of 16: not for those that steps differ in.
@triton.jit(do_not_specialize=["first_row", "num_rows", "table_stride", "pieces", "chunks"])
def _attention_kernel(
    query,  # [T, H, D]
    key_cache,  # [B, K, S, D]
    value_cache,  # [B, K, S, D]
    out,  # [T, H, D]; SPLIT: [T', H, C, D] float32
    stats,  # SPLIT: [T', H, C, 2] float32, largest score and total weight
    query_starts,  # [R + 1]
    lengths,  # [R]
    block_tables,  # [R, N]
    sinks,  # [H] float32, or None; so the next three
    slopes,  # [H] float32
    key_scales,  # [K] float32
    value_scales,  # [K] float32
    first_row,
    num_rows,
    query_stride,
    table_stride,
    pieces,
    chunks,
    scale,
    soft_cap,
    window,
    NUM_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    DECODE: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    head, split, splits = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    if DECODE:
        row, piece = first_row + tl.program_id(0) // pieces, tl.program_id(0) % pieces
    else:  # a row's last tokens see most: they begin first
        program = tl.num_programs(0) - 1 - tl.program_id(0)
        row, piece = _find_row(query_starts, first_row, num_rows, program, QUERIES)
    first_token = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - first_token
    if piece * QUERIES >= count:
        return
    length = tl.load(lengths + row)
    context = length - count

    m = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    token = piece * QUERIES + m // GROUP
    heads = head * GROUP + m % GROUP
    valid = (m < QUERIES * GROUP) & (token < count)
    query_at = (first_token + token).to(tl.int64) * query_stride + heads * HEAD_DIM
    inside = valid[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + query_at[:, None] + dims[None, :], mask=inside, other=0.0)
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + heads, mask=valid, other=0.0) * LOG2E
    if key_scales is not None:
        scale *= tl.load(key_scales + head)
    keys = key_cache + head * BLOCK_SIZE * HEAD_DIM
    values = value_cache + head * BLOCK_SIZE * HEAD_DIM
    table = block_tables + row.to(tl.int64) * table_stride
    stride: tl.constexpr = NUM_KV * BLOCK_SIZE * HEAD_DIM
    at = (first_token + token).to(tl.int64) * (NUM_KV * GROUP) + heads

    acc = tl.zeros([ROWS, DIM], tl.float32)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if not SPLIT and sinks is not None:  # as if a key had been seen whose value is 0
        largest = tl.load(sinks + heads, mask=valid, other=0.0) * LOG2E
        total += 1.0
    first_position = context + piece * QUERIES
    tiles: tl.constexpr = CHUNK // TILE
    begin = 0
    if CHUNKED:
        begin = tl.maximum(first_position, 0) // window * window // TILE
    elif HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // TILE
    end = tl.cdiv(tl.minimum(first_position + QUERIES, length), TILE)
    chunk = begin // tiles + split
    if not HAS_WINDOW:  # chunks that all queries see whole
        full = tl.maximum((first_position + 1) // CHUNK, chunk)
        for each in range(chunk, full, splits):
            part, part_largest, part_total = attend(
                q, context + token, slope, keys, values, table, each * tiles, each * tiles + tiles, length,
                scale, soft_cap, window, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP,
                False, False, False,
            )  # fmt: skip
            if SPLIT:
                _put(
                    out,
                    stats,
                    at * chunks + each,
                    part,
                    part_largest,
                    part_total,
                    valid,
                    inside,
                    HEAD_DIM,
                    DIM,
                )
            else:
                acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
        chunk += tl.cdiv(full - chunk, splits) * splits
    for each in range(chunk, tl.cdiv(end, tiles), splits):
        first, last = tl.maximum(begin, each * tiles), tl.minimum(end, each * tiles + tiles)
        part, part_largest, part_total = attend(
            q, context + token, slope, keys, values, table, first, last, length,
            scale, soft_cap, window, ROWS, HEAD_DIM, DIM, BLOCK_SIZE, stride, TILE, HAS_CAP,
            HAS_WINDOW, CHUNKED, True,
        )  # fmt: skip
        if SPLIT:
            _put(out, stats, at * chunks + each, part, part_largest, part_total, valid, inside, HEAD_DIM, DIM)
        else:
            acc, largest, total = add_chunk(acc, largest, total, part, part_largest, part_total)
    if not SPLIT:
        value_scale = None
        if value_scales is not None:
            value_scale = tl.load(value_scales + head)
        result = quotient(acc, total, value_scale)
        tl.store(out + at[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=inside)
