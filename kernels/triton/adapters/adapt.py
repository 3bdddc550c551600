"""Applies the adapters of a step to the outputs of one layer: kernels.ops.layers.adapters on CUDA.

    s[m, j] = sum_k a[j, k] x[m, k]                in the order of kernels.triton.matmul.ranges, for FEATURES
                                                   rows of a weight, whatever the rank
    t[m, j] = s[m, j] * scale                      float32
    d[m, n] = sum_j b[n, j] t[m, j]                float32, j ascending
    y[m, n] = round(y[m, n] + d[m, n])             to y's dtype

x: [T, K] and y: [T, N], rows may be strided: float32, float16 or bfloat16. Where x and a are bfloat16, the
matrix units multiply them; else both are widened. A token's bits depend on its inputs and its adapter, and
not on how many tokens there are. Tokens without an adapter are neither read nor written.

    shrink    grid (X, parts, ranges)         s of a tile of tokens and a part; few tokens: of one range,
                                              many: of all of them
    expand    grid (X, parts, N / FEATURES)   adds ranges, scales, and adds to y

X: tiles of tokens that have the same adapter, made by the host: the grid has as many as there may be, and
programs without a tile, or whose part the adapter does not have, end at once. Weights are found by their
addresses (kernels.triton.adapters.pack), so that a captured graph serves any adapters of any ranks. Bytes
moved: the weights of a part once for each tile, from L2 but for the first. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.layers.adapters import MAX_RANK, TILE, DeviceAdapters, StepAdapters
from kernels.triton.adapters.pack import FIELDS, RANKS
from kernels.triton.matmul.linear import range_sum
from kernels.triton.matmul.ranges import FEATURES, UNIT, range_length
from kernels.triton.requirements import num_processors


@triton.jit
def _record_of(tiles, part, layer, FIELDS: tl.constexpr):
    """Returns a pointer to the record of a part, and its rank; 0: there is no tile, or no such part."""
    address = tl.load(tiles + 3 * tl.program_id(0))
    table = address.to(tl.pointer_type(tl.int64))
    most = tl.load(table, mask=address != 0, other=0)
    record = table + 1 + (layer * most + part) * FIELDS
    return record, tl.load(record + 2, mask=part < most, other=0).to(tl.int32)


@triton.jit
def _matrix_at(record, dtype: tl.constexpr):
    """Returns a pointer to a matrix, whose address is in a record."""
    return tl.multiple_of(tl.load(record).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _tokens_of(tokens, tiles, TOKENS: tl.constexpr):
    """Returns the tokens of a tile, [TOKENS], and which of them there are."""
    number, tile = tl.arange(0, TOKENS), tiles + 3 * tl.program_id(0)
    there = number < tl.load(tile + 2)
    return tl.load(tokens + tl.load(tile + 1) + number, mask=there, other=0), there


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
    inputs,  # [TOKENS, DEPTH]
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
    weights = a + j[:, None] * IN + tl.arange(0, DEPTH)[None, :]
    total = tl.zeros([RANKS, TOKENS], tl.float32)
    for number in range(0, 1 if SPLIT else tl.cdiv(IN, RANGE)):
        begin = (tl.program_id(2) + number) * RANGE
        if NARROW:
            total += range_sum(weights, inputs, ours, real, begin, IN, RANGE, RANKS, TOKENS, DEPTH)
        else:
            total += _widened_sum(weights, inputs, ours, real, begin, IN, RANGE, RANKS, TOKENS, DEPTH)
    return total


@triton.jit(do_not_specialize=["layer", "num_tiles"])
def _shrink_kernel(
    x,  # [T, K]
    tokens,  # [T]
    tiles,  # [X, 3]
    sums,  # [ranges, X, parts, MAX_RANK, TOKENS]; not SPLIT: [1, ...]
    layer,
    num_tiles,  # X
    x_stride,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    NARROW: tl.constexpr,
    FIELDS: tl.constexpr,
):
    tile, part = tl.program_id(0), tl.program_id(1)
    record, rank = _record_of(tiles, part, layer, FIELDS)
    if rank == 0:
        return
    token, there = _tokens_of(tokens, tiles, TOKENS)
    inputs = x + token[:, None] * x_stride + tl.arange(0, DEPTH)[None, :]
    real = there[:, None]
    at = (tl.program_id(2) * num_tiles + tile) * tl.num_programs(1) + part
    target = sums + at.to(tl.int64) * MAX_RANK * TOKENS
    for first in range(0, rank, RANKS):
        if tl.load(record + 6) != 0:
            wide = _matrix_at(record, tl.float32)
            total = _sums_of(wide, inputs, real, first, rank, IN, RANGE, RANKS, TOKENS, DEPTH, SPLIT, False)
        else:
            a = _matrix_at(record, tl.bfloat16)
            total = _sums_of(a, inputs, real, first, rank, IN, RANGE, RANKS, TOKENS, DEPTH, SPLIT, NARROW)
        j = first + tl.arange(0, RANKS)
        tl.store(target + j[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :], total)


@triton.jit(do_not_specialize=["layer", "num_tiles"])
def _expand_kernel(
    sums,  # [RANGES, X, parts, MAX_RANK, TOKENS]
    tokens,  # [T]
    tiles,  # [X, 3]
    y,  # [T, N]
    layer,
    num_tiles,  # X
    y_stride,
    RANGES: tl.constexpr,
    RANKS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    FEATURES: tl.constexpr,
    FIELDS: tl.constexpr,
):
    tile, part = tl.program_id(0), tl.program_id(1)
    record, rank = _record_of(tiles, part, layer, FIELDS)
    if rank == 0:
        return
    columns, begin = tl.load(record + 4), tl.program_id(2) * FEATURES
    if begin >= columns:
        return
    token, there = _tokens_of(tokens, tiles, TOKENS)
    scale = tl.load(record + 5).to(tl.int32).to(tl.float32, bitcast=True)
    feature = begin + tl.arange(0, FEATURES)
    ours = (feature < columns)[:, None]
    acc = tl.zeros([FEATURES, TOKENS], tl.float32)
    for first in range(0, rank, RANKS):
        j = first + tl.arange(0, RANKS)
        inside = (j < rank)[:, None]
        t = tl.zeros([RANKS, TOKENS], tl.float32)
        for number in tl.static_range(RANGES):
            at = (number * num_tiles + tile) * tl.num_programs(1) + part
            source = sums + at.to(tl.int64) * MAX_RANK * TOKENS
            t += tl.load(source + j[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :], mask=inside, other=0.0)
        weights = feature[:, None] * (tl.cdiv(rank, RANKS) * RANKS) + j[None, :]
        if tl.load(record + 7) != 0:
            b = tl.load(_matrix_at(record + 1, tl.float32) + weights, mask=ours, other=0.0)
        else:
            b = tl.load(_matrix_at(record + 1, tl.bfloat16) + weights, mask=ours, other=0.0).to(tl.float32)
        acc = tl.dot(b, t * scale, acc, input_precision="ieee")
    target = y + token[:, None] * y_stride + (tl.load(record + 3) + feature)[None, :]
    mask = there[:, None] & (feature < columns)[None, :]
    before = tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, (before + tl.trans(acc)).to(y.dtype.element_ty), mask=mask)


def adapt(
    y: torch.Tensor, x: torch.Tensor, layer: int, adapters: StepAdapters, splits: bool | None = None
) -> torch.Tensor:
    """Adds to the rows of y [T, N] what their adapters make of x [T, K], in place, and returns y. layer: its
    number. splits: whether a program sums one range, which changes no bit; None: where there are few."""
    assert isinstance(adapters, DeviceAdapters)
    depth, num_tiles, parts = x.shape[1], len(adapters.tiles), adapters.parts[layer]
    assert x.stride(1) == 1 and y.stride(1) == 1 and adapters.tiles.is_contiguous()
    if not num_tiles:
        return y
    length = range_length(FEATURES, depth)
    if splits is None:
        splits = num_tiles * parts < 2 * num_processors(x.device)
    ranges = -(-depth // length) if splits else 1
    shape = ranges, num_tiles, parts, MAX_RANK, TILE
    sums = torch.empty(shape, dtype=torch.float32, device=x.device)
    sizes = {"RANKS": RANKS, "MAX_RANK": MAX_RANK, "TOKENS": TILE, "FIELDS": FIELDS, "num_warps": 4}
    steps = adapters.tokens, adapters.tiles
    _shrink_kernel[(num_tiles, parts, ranges)](
        x, *steps, sums, layer, num_tiles, x.stride(0),
        IN=depth, RANGE=length, DEPTH=UNIT, SPLIT=splits, NARROW=x.dtype == torch.bfloat16, **sizes,
    )  # fmt: skip
    _expand_kernel[(num_tiles, parts, -(-y.shape[1] // FEATURES))](
        sums, *steps, y, layer, num_tiles, y.stride(0),
        RANGES=ranges, FEATURES=FEATURES, num_stages=1, **sizes,
    )  # fmt: skip
    return y
