"""Products of pairs of tokens and experts, sorted by expert, each by its own expert's weight.

    y[p, n] = sum_k x[r[p], k] * w[e[p], n, k] + b[e[p], n]       in the order of kernels.triton.matmul.ranges

x: [R, K], rows may be strided; w: [N, F, K] and b: [N, F] contiguous, of x's dtype: float32, float16 or
bfloat16; y: [P, F], of that dtype; r: [P] rows of x, or None for row p; e: the owners of an ExpertOrder.
Each result has the bits of kernels.triton.matmul.linear with that row and that expert's weight: they do not
depend on how many pairs there are, nor on which experts other tokens have chosen.

    few pairs     grid (X, F / 64, ranges)     each program stores the sum of a range, float32;
                                               kernels.triton.matmul.range_launch adds them in order
    many pairs    grid (X, F / 128)            a program adds at the end of each range

X tiles of pairs, of which each has one expert (kernels.triton.experts.dispatch): the grid has as many as
there may be, and programs without a tile end at once. Tiles of one expert are neighbours, so that its weight
is read once and then comes from L2; weights of experts without pairs are not read.

Bytes moved: F * K of the weight for each chosen expert; K read and F written for each pair. Speed: not yet
measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.experts.dispatch import ExpertOrder
from kernels.triton.experts.tile_sizes import choose_grouped_sizes
from kernels.triton.matmul.linear import product_sums, store_sums
from kernels.triton.matmul.range_launch import RangeLaunch, launch_of
from kernels.triton.matmul.ranges import LinearSizes


@triton.jit
def pairs_of_tile(
    rows,  # [P], or None
    starts,  # [N + 1]
    tile_firsts,  # [X]
    expert,
    TOKENS: tl.constexpr,
):
    """Returns where the pairs of a program's tile are, sorted by expert, [TOKENS] int32; their rows of x,
    int64; and whether there is such a pair, [TOKENS, 1]."""
    place = tl.load(tile_firsts + tl.program_id(0)) + tl.arange(0, TOKENS)
    there = place < tl.load(starts + expert + 1)
    row = place
    if rows is not None:
        row = tl.load(rows + place, mask=there, other=0)
    return place, row.to(tl.int64), there[:, None]


@triton.jit(do_not_specialize=["pairs"])
def _grouped_kernel(
    x,  # [R, K]
    rows,  # [P], or None
    weight,  # [N, F, K]
    bias,  # [N, F], or None
    starts,  # [N + 1]
    tile_experts,  # [X]
    tile_firsts,  # [X]
    out,  # [P, F]; SPLIT: [ranges, P, F] float32
    pairs,
    features,
    x_stride,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    expert = tl.load(tile_experts + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    place, row, real = pairs_of_tile(rows, starts, tile_firsts, expert, TOKENS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    k = tl.arange(0, DEPTH)
    weights = weight + expert * features * IN + feature.to(tl.int64)[:, None] * IN + k[None, :]
    inputs = x + row[:, None] * x_stride + k[None, :]
    own_bias = bias
    if bias is not None:
        own_bias += expert * features
    total = product_sums(
        weights, inputs, own_bias, feature, features, real, IN, RANGE, FEATURES, TOKENS, DEPTH, SPLIT
    )
    store_sums(out, total, place.to(tl.int64), pairs, feature, features, real, SPLIT)


def launch_by_expert(
    out: torch.Tensor, depth: int, order: ExpertOrder, dtype: torch.dtype, sizes: LinearSizes | None
) -> RangeLaunch:
    """Returns the launch of a product by expert. out: [P, F]; depth: K; dtype: of x; sizes: with order.tile
    tokens; None: those of choose_grouped_sizes()."""

    def choose(ranges: int) -> LinearSizes:
        numbers = order.class_tiles, order.tile, out.shape[1], ranges
        return choose_grouped_sizes(*numbers, dtype, out.device)

    assert sizes is None or sizes.tokens == order.tile
    return launch_of(out, depth, sizes or choose, len(order.tile_experts))


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    order: ExpertOrder,
    rows: torch.Tensor | None = None,
    sizes: LinearSizes | None = None,
) -> torch.Tensor:
    """[R, K] -> [P, F]. rows: [P] int32, which row of x each pair has; None: x is sorted as the pairs are.
    sizes: launch parameters, which change no bit, with order.tile tokens; None: those of
    choose_grouped_sizes()."""
    _, features, depth = weight.shape
    pairs = len(order.owners)
    assert x.stride(1) == 1 and x.shape[1] == depth and (rows is not None or len(x) == pairs)
    assert weight.is_contiguous() and x.dtype == weight.dtype and (bias is None or bias.is_contiguous())
    out = torch.empty((pairs, features), dtype=x.dtype, device=x.device)
    if not pairs:
        return out
    launch = launch_by_expert(out, depth, order, x.dtype, sizes)
    _grouped_kernel[launch.grid](
        x,
        rows,
        weight,
        bias,
        order.starts,
        order.tile_experts,
        order.tile_firsts,
        launch.target,
        pairs,
        features,
        x.stride(0),
        DEPTH=launch.depth,
        **launch.constants,
    )
    launch.add_ranges(bias, None if bias is None else order.owners)
    return out
