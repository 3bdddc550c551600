"""Which program of kernels.triton.attention.paged_attention computes what: a list that the device makes.

A piece is up to QUERIES tokens of a row. It is one item of the list, unless its row has more chunks of
context than a fair share of the step: then programs share it, each an item, and the results of its chunks
are merged by kernels.triton.attention.merge_chunks. With n chunks that a row sees:

    most       = max(1, ceil(sum over rows of pieces * n * K / programs))          chunks of a fair share
    splits[i]  = ceil(n[i] / ceil(most / 2)) if n[i] > most, else 1
    items      = (i, piece, s, splits[i]): the chunks s, s + splits, ... of those that the piece sees

n[i] counts the chunks from that of the first position that the row's first token sees to that of its last.
`most` is doubled until the results of chunks, sum of count * n over shared rows, have a place. Shared rows
come first, then pieces of later rows before those of earlier ones; a row's last piece first, since it sees
most. So a step takes as long as its work, and not as long as its longest row: rows that decode and pieces of
prompts are one list.

    items       [N, 4] int32     row, piece, s, splits
    count       [1] int32        how many there are
    places      [R, 2] int32     b and n: token j of a shared row has the result of chunk c at b + j * n + c
    token_rows  [T] int32        the row of a token if it is shared, else -1

The order of sums does not depend on any of it: chunks are merged in ascending order in both cases. How many
items there may be follows from R and T, as grids of captured graphs need it: at most T / QUERIES + R, and
of shared rows 3 * programs / K more, since 3 * n / most is the most that splits are. One program per row;
bytes moved: 16 per item, 12 per row in each program. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2

BLOCK = 256
"""Items, and tokens, written at a time."""


@dataclass(frozen=True)
class WorkShape:
    """What a list depends on beside its rows. Layers with equal ones share a list."""

    queries: int  # tokens of a piece
    num_kv: int
    programs: int  # that run at a time
    capacity: int  # results of chunks, of all heads of a token, that there is room for
    shared_items: int  # of shared rows, that there is room for
    chunk: int
    window: int | None = None
    chunked: bool = False
    most: int = 0  # chunks of a fair share; 0: as computed


@dataclass(frozen=True)
class WorkList:
    items: torch.Tensor
    count: torch.Tensor
    places: torch.Tensor
    token_rows: torch.Tensor


def _chunks(context: int, length: int, shape: WorkShape) -> range:
    """Those that a row sees which has `context` tokens before its first."""
    begin, first = 0, max(context, 0)
    if shape.window is not None:
        begin = first // shape.window * shape.window if shape.chunked else max(first - shape.window + 1, 0)
    return range(begin // shape.chunk, max(begin // shape.chunk, -(-length // shape.chunk)))


@triton.jit
def _of(values, rows, row):
    """Returns one of values [ROWS]."""
    return tl.sum(tl.where(rows == row, values, 0), 0)


@triton.jit(do_not_specialize=["num_rows", "programs", "capacity", "most", "window"])
def _work_kernel(
    query_starts,  # [R + 1]
    lengths,  # [R]
    items,  # [N, 4]
    count,  # [1]
    places,  # [R, 2]
    token_rows,  # [T]
    num_rows,
    programs,
    capacity,
    most,
    window,
    NUM_KV: tl.constexpr,
    QUERIES: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    row, rows = tl.program_id(0), tl.arange(0, ROWS)
    real = rows < num_rows
    starts = tl.load(query_starts + rows, mask=real, other=0)
    tokens = tl.load(query_starts + rows + 1, mask=real, other=0) - starts
    length = tl.load(lengths + rows, mask=real, other=0)
    first = tl.maximum(length - tokens, 0)
    begin = tl.zeros([ROWS], tl.int32)
    if CHUNKED:
        begin = first // window * window // CHUNK
    elif HAS_WINDOW:
        begin = tl.maximum(first - window + 1, 0) // CHUNK
    chunks = tl.maximum(tl.cdiv(length, CHUNK) - begin, 0)
    pieces = tl.cdiv(tokens, QUERIES)
    if most == 0:
        most = tl.maximum(tl.cdiv(tl.sum(pieces * chunks, 0) * NUM_KV, programs), 1)
    while tl.sum(tl.where(chunks > most, tokens * chunks, 0), 0) > capacity:
        most *= 2
    shared = chunks > most
    results = tl.where(shared, tokens * chunks, 0)
    splits = tl.where(shared, tl.cdiv(chunks, (most + 1) // 2), 1)
    tl.store(places + 2 * row, tl.sum(tl.where(rows < row, results, 0), 0) - _of(begin, rows, row))
    tl.store(places + 2 * row + 1, _of(chunks, rows, row))

    of_shared = tl.where(shared, pieces * splits, 0)
    of_whole = tl.where(shared, 0, pieces)
    each, last_piece = _of(splits, rows, row), _of(pieces, rows, row) - 1
    at = tl.sum(tl.where(rows < row, of_shared, 0), 0)
    if each == 1:
        at = tl.sum(of_shared, 0) + tl.sum(tl.where(rows > row, of_whole, 0), 0)
    number = (last_piece + 1) * each
    for begin_at in range(0, number, BLOCK):
        item = begin_at + tl.arange(0, BLOCK)
        target = items + 4 * (at + item)
        tl.store(target, row, mask=item < number)
        tl.store(target + 1, last_piece - item // each, mask=item < number)
        tl.store(target + 2, item % each, mask=item < number)
        tl.store(target + 3, each, mask=item < number)
    first_token, row_tokens = _of(starts, rows, row), _of(tokens, rows, row)
    for begin_at in range(0, row_tokens, BLOCK):
        token = begin_at + tl.arange(0, BLOCK)
        tl.store(token_rows + first_token + token, tl.where(each > 1, row, -1), mask=token < row_tokens)
    if row == 0:
        tl.store(count, tl.sum(of_shared + of_whole, 0))


def make_work_list(
    query_starts: torch.Tensor, lengths: torch.Tensor, tokens: int, shape: WorkShape
) -> WorkList:
    """query_starts: [R + 1], lengths: [R], int32, R >= 1; tokens: T, at least query_starts[R]."""
    rows, device = lengths.shape[0], lengths.device

    def integers(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    most_items = tokens // shape.queries + rows + shape.shared_items
    work = WorkList(integers(most_items, 4), integers(1), integers(rows, 2), integers(tokens))
    _work_kernel[(rows,)](
        query_starts,
        lengths,
        work.items,
        work.count,
        work.places,
        work.token_rows,
        rows,
        shape.programs,
        shape.capacity,
        shape.most,
        shape.window or 0,
        NUM_KV=shape.num_kv,
        QUERIES=shape.queries,
        CHUNK=shape.chunk,
        ROWS=next_power_of_2(rows),
        BLOCK=BLOCK,
        HAS_WINDOW=shape.window is not None,
        CHUNKED=shape.window is not None and shape.chunked,
        num_warps=4,
    )
    return work
