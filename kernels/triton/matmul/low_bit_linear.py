"""Products with weights of 4 or 8 bits, whose bits depend on the row of x and the weight alone.

x: [T, K] float16 or bfloat16, rows may be strided; w: kernels.triton.matmul.low_bit_weight, of which a
program makes values of x's dtype in registers; b: [N] contiguous, or None. y: [T, N], of x's dtype, or
float32 if wide. Sums, grids and schedules are those of kernels.triton.matmul.linear.

Integers become float32 without a conversion, whose rate is a quarter of an addition's or less: the bits of
2 ** 23 + p hold p in their last places. The bits of float8 e4m3, moved to the places of float32, are the
number times 2 ** -120, and those of e2m1 twice the number times 2 ** -127; so no conversion of 8.9 and later
is needed.

On 9.0 the bits are those of kernels.triton.matmul.linear with the unpacked weight. On 8.x and 12.0 Triton
gives a thread four neighbouring values that it has loaded together, so that matrix instructions take the 32
values of two of them in another order: one order for any number of rows, in which the last bits are others.

Bytes moved: those of the weight once for each tile of tokens (from L2 but for the first), and as
kernels.triton.matmul.linear. Speed: not yet measured on a GPU.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels.triton.matmul.linear import store_sums
from kernels.triton.matmul.low_bit_weight import HALF, ROWS, LowBitWeight
from kernels.triton.matmul.range_launch import launch_of
from kernels.triton.matmul.ranges import UNIT, LinearSizes, choose_sizes
from kernels.triton.requirements import num_processors

assert UNIT == ROWS

INT4 = tl.constexpr(0)
E2M1 = tl.constexpr(1)
INT8 = tl.constexpr(2)
E4M3 = tl.constexpr(3)
"""The values of kernels.triton.matmul.low_bit_weight.Code: the first two have 4 bits."""
TILE = tl.constexpr(ROWS)
PART = tl.constexpr(HALF)
SHIFTED = tl.constexpr(0x4B000000)
"""The bits of 2 ** 23 in float32."""


@triton.jit
def _values(codes, param, CODE: tl.constexpr):
    """Returns the values [FEATURES, k] float32 of codes [FEATURES, k] of one group; param: [FEATURES] its
    scales and zero points."""
    p = codes.to(tl.int32)
    if CODE == INT4:
        scale = (param & -256).to(tl.float32, bitcast=True)
        zero = ((param & 255) | SHIFTED).to(tl.float32, bitcast=True)
        return ((p | SHIFTED).to(tl.float32, bitcast=True) - zero[:, None]) * scale[:, None]
    scale = param.to(tl.float32, bitcast=True)[:, None]
    if CODE == INT8:
        return ((p ^ 128 | SHIFTED).to(tl.float32, bitcast=True) - (8388608.0 + 128.0)) * scale
    if CODE == E2M1:
        number = ((p & 8) << 28 | (p & 7) << 22).to(tl.float32, bitcast=True)
        return number * 170141183460469231731687303715884105728.0 * scale  # 2 ** 127
    number = ((p & 128) << 24 | (p & 127) << 20).to(tl.float32, bitcast=True)
    return number * 1329227995784915872903807060280344576.0 * scale  # 2 ** 120


@triton.jit
def _range_sum(
    weights,  # [FEATURES, bytes of a row of a tile] pointers to the first tile
    scales,  # [FEATURES] pointers to those of the first group
    inputs,  # [TOKENS, values of k] pointers to the first values
    ours,  # [FEATURES] whether the weight has the row
    real,  # [TOKENS, 1]
    begin,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Returns the sum of the range that begins at `begin`, [FEATURES, TOKENS] float32, as _range_sum() of
    kernels.triton.matmul.linear."""
    acc = tl.zeros([FEATURES, TOKENS], tl.float32)
    DEPTH: tl.constexpr = PART if CODE <= E2M1 else TILE
    TILE_BYTES: tl.constexpr = TILE * DEPTH
    for step in range(0, RANGE, TILE):
        at = begin + step
        there = ours
        if IN % RANGE != 0:
            there = ours & (at < IN)
        codes = tl.load(weights + at // TILE * TILE_BYTES, mask=there[:, None], other=0)
        for first in tl.static_range(0, TILE, DEPTH):
            k = at + first
            param = tl.load(scales + k // GROUP * TILE, mask=there, other=0)
            part = codes
            if DEPTH < TILE:
                part = (codes >> (4 if first else 0)) & 15
            w = _values(part, param, CODE).to(inputs.dtype.element_ty)
            if IN % RANGE == 0:
                x = tl.load(inputs + k, mask=real, other=0.0)
            else:
                inside = (k + tl.arange(0, DEPTH) < IN)[None, :]
                x = tl.load(inputs + k, mask=real & inside, other=0.0)
            acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    return acc


@triton.jit
def low_bit_sums(
    codes,  # [N / 64, K / 64, 64, bytes of a row]
    scaling,  # [N / 64, groups, 64]
    bias,  # [N], or None
    inputs,  # [TOKENS, 1] pointers to the rows of x
    feature,  # [FEATURES]
    features,
    real,  # [TOKENS, 1]
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Returns what a program sums, [FEATURES, TOKENS] float32: one range (SPLIT), or all of them and the
    bias."""
    DEPTH: tl.constexpr = PART if CODE <= E2M1 else TILE
    TILES: tl.constexpr = (IN + TILE - 1) // TILE
    GROUPS: tl.constexpr = (TILES * TILE + GROUP - 1) // GROUP
    k = tl.arange(0, DEPTH)
    row = feature.to(tl.int64) // TILE * (TILES * TILE) + feature % TILE
    weights = codes + row[:, None] * DEPTH + k[None, :]
    scales = scaling + feature.to(tl.int64) // TILE * (GROUPS * TILE) + feature % TILE
    values, ours = inputs + k[None, :], feature < features
    if SPLIT:
        begin = tl.program_id(2) * RANGE
        total = _range_sum(
            weights, scales, values, ours, real, begin, IN, RANGE, GROUP, CODE, FEATURES, TOKENS
        )
    else:
        total = tl.zeros([FEATURES, TOKENS], tl.float32)
        for begin in range(0, IN, RANGE):
            total += _range_sum(
                weights, scales, values, ours, real, begin, IN, RANGE, GROUP, CODE, FEATURES, TOKENS
            )
        if bias is not None:
            total += tl.load(bias + feature, mask=feature < features, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit(do_not_specialize=["tokens"])
def _low_bit_kernel(
    x,  # [T, K]
    codes,  # [N / 64, K / 64, 64, bytes of a row]
    scaling,  # [N / 64, groups, 64]
    bias,  # [N], or None
    out,  # [T, N]; SPLIT: [ranges, T, N] float32
    tokens,
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
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    inputs, real = x + token.to(tl.int64)[:, None] * x_stride, (token < tokens)[:, None]
    total = low_bit_sums(
        codes, scaling, bias, inputs, feature, features, real, IN, RANGE, GROUP, CODE, FEATURES, TOKENS, SPLIT
    )
    store_sums(out, total, token.to(tl.int64), tokens, feature, features, real, SPLIT)


def low_bit_linear(
    x: torch.Tensor,
    weight: LowBitWeight,
    bias: torch.Tensor | None = None,
    wide: bool = False,
    sizes: LinearSizes | None = None,
) -> torch.Tensor:
    """[T, K] -> [T, N]. wide: the result is float32. sizes: launch parameters, which change no bit, with a
    depth of UNIT; None: those of choose_sizes()."""
    (tokens, depth), features = x.shape, weight.out_features
    assert depth == weight.in_features and (bias is None or bias.is_contiguous())
    out = torch.empty((tokens, features), dtype=torch.float32 if wide else x.dtype, device=x.device)
    if not tokens:
        return out
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    assert x.stride(1) == 1
    processors = 0 if x.device.type == "cpu" else num_processors(x.device)

    def choose(ranges: int) -> LinearSizes:
        chosen = choose_sizes(tokens, features, ranges, x.dtype, processors)
        return replace(chosen, tokens=min(chosen.tokens, weight.code.most_rows))

    launch = launch_of(out, depth, sizes or choose)
    _low_bit_kernel[launch.grid](
        x,
        weight.codes,
        weight.params,
        bias,
        launch.target,
        tokens,
        features,
        x.stride(0),
        GROUP=weight.group_size,
        CODE=weight.code.value,
        **launch.constants,
    )
    launch.add_ranges(bias)
    return out
