"""Products by expert with weights of 4 or 8 bits, of which a program makes values in registers.

x: [R, K] float16 or bfloat16, rows may be strided; w: the weights of all experts as one of
kernels.triton.matmul.low_bit_weight, one below the other, each padded to a multiple of 64 rows; the rest
is that of kernels.triton.experts.grouped_linear, grids and schedules too. Each result has the bits of
kernels.triton.matmul.low_bit_linear with that row and that expert's weight.

Bytes moved: those of the weight of each chosen expert; K read and F written for each pair. Speed: not yet
measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.experts.dispatch import ExpertOrder
from kernels.triton.experts.grouped_linear import launch_by_expert, pairs_of_tile
from kernels.triton.matmul.linear import store_sums
from kernels.triton.matmul.low_bit_linear import E2M1, PART, TILE, low_bit_sums
from kernels.triton.matmul.low_bit_weight import LowBitWeight
from kernels.triton.matmul.ranges import LinearSizes


@triton.jit(do_not_specialize=["pairs"])
def _grouped_low_bit_kernel(
    x,  # [R, K]
    rows,  # [P], or None
    codes,  # [N * F / 64, K / 64, 64, bytes of a row]
    scaling,  # [N * F / 64, groups, 64]
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
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    expert = tl.load(tile_experts + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    place, row, real = pairs_of_tile(rows, starts, tile_firsts, expert, TOKENS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    DEPTH: tl.constexpr = PART if CODE <= E2M1 else TILE
    TILES: tl.constexpr = (IN + TILE - 1) // TILE
    GROUPS: tl.constexpr = (TILES * TILE + GROUP - 1) // GROUP
    blocks = expert * tl.cdiv(features, TILE)
    own_codes, own_scaling = codes + blocks * (TILES * TILE * DEPTH), scaling + blocks * (GROUPS * TILE)
    own_bias = bias
    if bias is not None:
        own_bias += expert * features
    inputs = x + row[:, None] * x_stride
    total = low_bit_sums(
        own_codes, own_scaling, own_bias, inputs, feature, features, real,
        IN, RANGE, GROUP, CODE, FEATURES, TOKENS, SPLIT,
    )  # fmt: skip
    store_sums(out, total, place.to(tl.int64), pairs, feature, features, real, SPLIT)


def grouped_low_bit_linear(
    x: torch.Tensor,
    weight: LowBitWeight,
    bias: torch.Tensor | None,
    order: ExpertOrder,
    rows: torch.Tensor | None = None,
    sizes: LinearSizes | None = None,
) -> torch.Tensor:
    """[R, K] -> [P, F]. weight: of all experts. rows: [P] int32, which row of x each pair has; None: x is
    sorted as the pairs are. sizes: launch parameters, which change no bit, with order.tile tokens;
    None: those of choose_grouped_sizes()."""
    pairs, features = len(order.owners), weight.out_features
    assert x.stride(1) == 1 and x.shape[1] == weight.in_features and (rows is not None or len(x) == pairs)
    assert weight.experts == len(order.starts) - 1 and weight.order is None
    assert bias is None or bias.is_contiguous()
    out = torch.empty((pairs, features), dtype=x.dtype, device=x.device)
    if not pairs:
        return out
    launch = launch_by_expert(out, weight.in_features, order, x.dtype, sizes)
    _grouped_low_bit_kernel[launch.grid](
        x,
        rows,
        weight.codes,
        weight.params,
        bias,
        order.starts,
        order.tile_experts,
        order.tile_firsts,
        launch.target,
        pairs,
        features,
        x.stride(0),
        GROUP=weight.group_size,
        CODE=weight.code.value,
        **launch.constants,
    )
    launch.add_ranges(bias, None if bias is None else order.owners)
    return out
