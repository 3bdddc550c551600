"""Applies the adapters of a step to the outputs of one layer: kernels.ops.layers.adapters on CUDA.

    s[m, j] = sum_k a[j, k] x[m, k]                in the order of kernels.triton.matmul.ranges, for FEATURES
                                                   rows of a weight, whatever the rank
    t[m, j] = s[m, j] * scale                      float32
    d[m, n] = sum_j b[n, j] t[m, j]                float32, j ascending
    y[m, n] = round(y[m, n] + d[m, n])             to y's dtype

x: [T, K] and y: [T, N], rows may be strided: float32, float16 or bfloat16. Where x and a are bfloat16, the
matrix units multiply them; else both are widened. A token's bits depend on its inputs and its adapter, and
not on how many tokens there are. Tokens without an adapter are neither read nor written. For the lookup of
embeddings s[m, j] = a[j, id of m].

    shrink    grid (X, parts, ranges)         s of a tile of tokens and a part; few tokens: of one range,
                                              many: of all of them
    look_up   grid (X, parts)                 the same of a lookup
    expand    grid (X, parts, N / FEATURES)   adds ranges, scales, and adds to y

X: tiles of tokens that have the same adapter, made by the host: the grid has as many as there may be, and
programs without a tile, or whose part the adapter does not have, end at once. Of experts a tile has pairs of
one expert and one adapter, made on the device (kernels.triton.adapters.pairs). Of latent attention's heads,
layers that follow one another are one launch: `parts` are those of all of them. Weights are found by their
addresses (kernels.triton.adapters.pack), so that a captured graph serves any adapters of any ranks. Bytes
moved: the weights of a part once for each tile, from L2 but for the first; those of a lookup in sectors of 32
bytes for each value. Speed: not yet measured on a GPU.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.ops.layers.adapters import MAX_RANK, TILE, DeviceAdapters, StepAdapters
from kernels.triton.adapters.pack import ENTRY, FIELDS, RANKS
from kernels.triton.adapters.pairs import AdaptedOrder
from kernels.triton.matmul.linear import range_sum
from kernels.triton.matmul.ranges import FEATURES, UNIT, range_length
from kernels.triton.requirements import BUFFER_BYTES, num_processors


@triton.jit
def _work_of(tokens, tiles, layer, parts, ENTRY: tl.constexpr, FIELDS: tl.constexpr, TOKENS: tl.constexpr):
    """Returns a pointer to the record of a program's part, its rank (0: there is no tile, or no such part),
    which of the layers it belongs to, the tokens of the tile, [TOKENS], and which of them there are."""
    tile, matrix, part = tiles + 3 * tl.program_id(0), tl.program_id(1) // parts, tl.program_id(1) % parts
    address = tl.load(tile)
    entry = address.to(tl.pointer_type(tl.int64)) + (layer + matrix) * ENTRY
    record = entry + tl.load(entry, mask=address != 0, other=0) + part * FIELDS
    has_part = part < tl.load(entry + 1, mask=address != 0, other=0)
    rank = tl.load(record + 2, mask=has_part, other=0).to(tl.int32)
    number = tl.arange(0, TOKENS)
    there = number < tl.load(tile + 2)
    token = tl.load(tokens + tl.load(tile + 1) + number, mask=there, other=0)
    return record, rank, matrix.to(tl.int64), token, there


@triton.jit
def _sums_at(
    sums,  # [ranges, X, parts, MAX_RANK, TOKENS]
    number,
    num_tiles,
    first,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Returns pointers to s of RANKS values of the rank, [RANKS, TOKENS], of a range."""
    at = (number * num_tiles + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
    j = first + tl.arange(0, RANKS)
    return sums + at.to(tl.int64) * MAX_RANK * TOKENS + j[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]


@triton.jit
def _matrix_at(record, dtype: tl.constexpr):
    """Returns a pointer to a matrix, whose address is in a record."""
    return tl.multiple_of(tl.load(record).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _widened_sum(
    weights,  # [RANKS, DEPTH] pointers to the first values of K
    inputs,  # [TOKENS, DEPTH]
    ours,  # [RANKS, 1]
    real,  # [TOKENS, 1]
    begin,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    RANKS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """As range_sum(), of operands that are widened to float32."""
    acc = tl.zeros([RANKS, TOKENS], tl.float32)
    for step in range(0, RANGE, DEPTH):
        at = begin + step
        inside = (at + tl.arange(0, DEPTH) < IN)[None, :]
        w = tl.load(weights + at, mask=ours & inside, other=0.0).to(tl.float32)
        x = tl.load(inputs + at, mask=real & inside, other=0.0).to(tl.float32)
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    return acc


@triton.jit
def _sums_of(
    a,  # pointer to [r, K]
    rows,  # [TOKENS, 1] pointers to the tokens' x
    real,  # [TOKENS, 1]
    first,
    rank,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    RANKS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    NARROW: tl.constexpr,
):
    """Returns s of RANKS values of the rank, [RANKS, TOKENS]: of one range (SPLIT), or of all of them.
    NARROW: both operands are bfloat16."""
    j = first + tl.arange(0, RANKS)
    ours = (j < rank)[:, None]
    # Operands that are widened are all in registers: with half as many of them nothing spills.
    STEP: tl.constexpr = DEPTH if NARROW else DEPTH // 2
    weights = a + j[:, None] * IN + tl.arange(0, STEP)[None, :]
    inputs = rows + tl.arange(0, STEP)[None, :]
    total = tl.zeros([RANKS, TOKENS], tl.float32)
    for number in range(0, 1 if SPLIT else tl.cdiv(IN, RANGE)):
        begin = (tl.program_id(2) + number) * RANGE
        if NARROW:
            total += range_sum(weights, inputs, ours, real, begin, IN, RANGE, RANKS, TOKENS, STEP)
        else:
            total += _widened_sum(weights, inputs, ours, real, begin, IN, RANGE, RANKS, TOKENS, STEP)
    return total


@triton.jit(do_not_specialize=["layer", "parts", "num_tiles"])
def _shrink_kernel(
    x,  # [T, K], or of several layers [T, layers, K]
    tokens,  # [T]
    tiles,  # [X, 3]
    sums,  # [ranges, X, parts, MAX_RANK, TOKENS]; not SPLIT: [1, ...]
    layer,
    parts,  # of a layer
    num_tiles,  # X
    x_stride,
    x_pitch,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    NARROW: tl.constexpr,
    ENTRY: tl.constexpr,
    FIELDS: tl.constexpr,
):
    record, rank, matrix, token, there = _work_of(tokens, tiles, layer, parts, ENTRY, FIELDS, TOKENS)
    if rank == 0:
        return
    rows, real = x + matrix * x_pitch + token[:, None] * x_stride, there[:, None]
    for first in range(0, rank, RANKS):
        if tl.load(record + 6) != 0:
            wide = _matrix_at(record, tl.float32)
            total = _sums_of(wide, rows, real, first, rank, IN, RANGE, RANKS, TOKENS, DEPTH, SPLIT, False)
        else:
            a = _matrix_at(record, tl.bfloat16)
            total = _sums_of(a, rows, real, first, rank, IN, RANGE, RANKS, TOKENS, DEPTH, SPLIT, NARROW)
        tl.store(_sums_at(sums, tl.program_id(2), num_tiles, first, RANKS, MAX_RANK, TOKENS), total)


@triton.jit(do_not_specialize=["layer", "parts", "num_tiles", "vocab_size"])
def _look_up_kernel(
    token_ids,  # [T]
    tokens,  # [T]
    tiles,  # [X, 3]
    sums,  # [1, X, parts, MAX_RANK, TOKENS]
    layer,
    parts,  # of a layer
    num_tiles,  # X
    vocab_size,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    ENTRY: tl.constexpr,
    FIELDS: tl.constexpr,
):
    record, rank, _, token, there = _work_of(tokens, tiles, layer, parts, ENTRY, FIELDS, TOKENS)
    if rank == 0:
        return
    token_id = tl.load(token_ids + token, mask=there, other=0)
    for first in range(0, rank, RANKS):
        j = first + tl.arange(0, RANKS)
        at = j[:, None] * vocab_size + token_id[None, :]
        inside = (j < rank)[:, None] & there[None, :]
        if tl.load(record + 6) != 0:
            found = tl.load(_matrix_at(record, tl.float32) + at, mask=inside, other=0.0)
        else:
            found = tl.load(_matrix_at(record, tl.bfloat16) + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(_sums_at(sums, 0, num_tiles, first, RANKS, MAX_RANK, TOKENS), found)


@triton.jit(do_not_specialize=["layer", "parts", "num_tiles", "y_pitch"])
def _expand_kernel(
    sums,  # [RANGES, X, parts, MAX_RANK, TOKENS]
    tokens,  # [T]
    tiles,  # [X, 3]
    y,  # [T, N], or of several layers [T, layers, N]
    layer,
    parts,  # of a layer
    num_tiles,  # X
    y_stride,
    y_pitch,
    RANGES: tl.constexpr,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    FEATURES: tl.constexpr,
    ENTRY: tl.constexpr,
    FIELDS: tl.constexpr,
):
    record, rank, matrix, token, there = _work_of(tokens, tiles, layer, parts, ENTRY, FIELDS, TOKENS)
    if rank == 0:
        return
    columns, begin = tl.load(record + 4), tl.program_id(2) * FEATURES
    if begin >= columns:
        return
    scale = tl.load(record + 5).to(tl.int32).to(tl.float32, bitcast=True)
    feature = begin + tl.arange(0, FEATURES)
    ours = (feature < columns)[:, None]
    acc = tl.zeros([FEATURES, TOKENS], tl.float32)
    for first in range(0, rank, RANKS):
        j = first + tl.arange(0, RANKS)
        inside = (j < rank)[:, None]
        t = tl.zeros([RANKS, TOKENS], tl.float32)
        for number in tl.static_range(RANGES):
            source = _sums_at(sums, number, num_tiles, first, RANKS, MAX_RANK, TOKENS)
            t += tl.load(source, mask=inside, other=0.0)
        weights = feature[:, None] * (tl.cdiv(rank, RANKS) * RANKS) + j[None, :]
        if tl.load(record + 7) != 0:
            b = tl.load(_matrix_at(record + 1, tl.float32) + weights, mask=ours, other=0.0)
        else:
            b = tl.load(_matrix_at(record + 1, tl.bfloat16) + weights, mask=ours, other=0.0).to(tl.float32)
        acc = tl.dot(b, t * scale, acc, input_precision="ieee")
    target = y + matrix * y_pitch + token[:, None] * y_stride + (tl.load(record + 3) + feature)[None, :]
    mask = there[:, None] & (feature < columns)[None, :]
    before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (before + tl.trans(acc)).to(y.dtype.element_ty), mask=mask)


_SIZES = {
    "RANKS": RANKS,
    "MAX_RANK": MAX_RANK,
    "TOKENS": TILE,
    "ENTRY": ENTRY,
    "FIELDS": FIELDS,
    "num_warps": 4,
}


class _Tiles(NamedTuple):
    """Tiles of rows, and of what layers these are."""

    tiles: torch.Tensor  # [X, 3]
    reads: torch.Tensor  # the rows of x
    writes: torch.Tensor  # those of y
    layer: int
    parts: int  # of a layer
    layers: int = 1

    @property
    def most_parts(self) -> int:
        """Of all layers."""
        return self.parts * self.layers

    def pieces(self, ranges: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields tiles, and room for their sums: as many at once as a buffer has room for, at addresses that
        kernels are compiled for."""
        each = 4 * ranges * self.most_parts * MAX_RANK * TILE
        most = max(1, BUFFER_BYTES // each // TILE) * TILE
        for begin in range(0, len(self.tiles), most):
            tiles = self.tiles[begin : begin + most]
            shape = ranges, len(tiles), self.most_parts, MAX_RANK, TILE
            yield tiles, torch.empty(shape, dtype=torch.float32, device=tiles.device)

    def expand(self, y: torch.Tensor, tiles: torch.Tensor, sums: torch.Tensor) -> None:
        """Adds to y [T, N], or [T, layers, N]."""
        _expand_kernel[(len(tiles), self.most_parts, -(-y.shape[-1] // FEATURES))](
            sums, self.writes, tiles, y, self.layer, self.parts, len(tiles), y.stride(0), _pitch(y),
            RANGES=len(sums), FEATURES=FEATURES, num_stages=1, **_SIZES,
        )  # fmt: skip


def _pitch(x: torch.Tensor) -> int:
    """Returns how far the values of one layer are from those of the next."""
    return x.stride(1) if x.dim() == 3 else 0


def _adapt(y: torch.Tensor, x: torch.Tensor, work: _Tiles, splits: bool | None = None) -> torch.Tensor:
    """Adds to y [T, N] what adapters make of x [T, K]; of several layers, to y [T, layers, N] what they make
    of x [T, layers, K]. Returns y. splits: as for adapt()."""
    depth, num_tiles = x.shape[-1], len(work.tiles)
    assert x.stride(-1) == 1 and y.stride(-1) == 1 and work.tiles.is_contiguous()
    length = range_length(FEATURES, depth)
    if splits is None:
        splits = num_tiles * work.most_parts < 2 * num_processors(x.device)
    ranges = -(-depth // length) if splits else 1
    for tiles, sums in work.pieces(ranges):
        _shrink_kernel[(len(tiles), work.most_parts, ranges)](
            x, work.reads, tiles, sums, work.layer, work.parts, len(tiles), x.stride(0), _pitch(x),
            IN=depth, RANGE=length, DEPTH=UNIT, SPLIT=splits, NARROW=x.dtype == torch.bfloat16, **_SIZES,
        )  # fmt: skip
        work.expand(y, tiles, sums)
    return y


def _tiles_of(adapters: StepAdapters, layer: int, layers: int = 1) -> _Tiles:
    """Returns the tiles of a step's tokens."""
    assert isinstance(adapters, DeviceAdapters)
    return _Tiles(adapters.tiles, adapters.tokens, adapters.tokens, layer, adapters.parts[layer], layers)


def adapt(
    y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters | None, splits: bool | None = None
) -> torch.Tensor:
    """Computes kernels.ops.layers.adapters. splits: whether a program sums one range, which changes no bit;
    None: where there are few."""
    return y if adapters is None else _adapt(y, x, _tiles_of(adapters, layer), splits)


def adapt_heads(y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters) -> torch.Tensor:
    """Adds to y [T, H, N] what adapters make of x [T, H, K], each head by its own layer, in place, and
    returns y. layer: number of the first one, behind which are the others'. Each has as many parts."""
    return _adapt(y, x, _tiles_of(adapters, layer, x.shape[1]))


def adapt_embeddings(
    y: torch.Tensor, token_ids: torch.Tensor, layer: int, adapters: StepAdapters, vocab_size: int
) -> torch.Tensor:
    """Computes kernels.ops.layers.adapters. vocab_size: of the table, whose ids [T] int64 are."""
    work = _tiles_of(adapters, layer)
    for tiles, sums in work.pieces(1):
        _look_up_kernel[(len(tiles), work.most_parts)](
            token_ids, work.reads, tiles, sums, layer, work.parts, len(tiles), vocab_size, **_SIZES
        )
        work.expand(y, tiles, sums)
    return y


def adapt_experts(
    y: torch.Tensor,
    x: torch.Tensor,
    layer: int,
    adapters: StepAdapters,
    order: AdaptedOrder,
    by_token: bool = False,
) -> torch.Tensor:
    """Computes kernels.ops.layers.adapters. x: [P, K]; by_token: [T, K]."""
    assert isinstance(adapters, DeviceAdapters)
    reads = order.adapted_tokens if by_token else order.adapted_pairs
    return _adapt(y, x, _Tiles(order.adapted_tiles, reads, order.adapted_pairs, layer, adapters.parts[layer]))
