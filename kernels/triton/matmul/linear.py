"""kernels.ops.layers.linear on CUDA: products whose bits do not depend on the number of rows.

    y[t, n] = sum_k x[t, k] * w[n, k] + b[n]          in the order of kernels.triton.matmul.ranges

x: [T, K], rows may be strided; w: [N, K] and b: [N] contiguous, of x's dtype: float32, float16 or bfloat16.
y: [T, N], of that dtype, or float32 if wide: logits keep what the sums have.

    few tokens     grid (T / 16, N / 64, ranges)     each program stores the sum of a range, float32;
                                                     kernels.triton.matmul.range_launch adds them in order
    many tokens    grid (T / 128, N / 128)           a program adds at the end of each range; 64 tokens where
                                                     registers have room for no more

Bytes moved: N * K of the weight once for each tile of tokens (from L2 but for the first, since programs of
the same rows of the weight follow one another), T * K for each tile of the weight, T * N written; with splits
8 * T * N * ranges more. Speed: not yet measured on a GPU; torch.nn.functional.linear is the peer.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.capabilities import capability_of
from kernels.triton.matmul.range_launch import launch_of
from kernels.triton.matmul.ranges import LinearSizes, SumOrder, choose_sizes
from kernels.triton.requirements import num_processors


@triton.jit
def range_sum(
    weights,  # [FEATURES, DEPTH] pointers to the first values of K
    inputs,  # [TOKENS, DEPTH]
    ours,  # [FEATURES, 1] whether the weight has the row
    real,  # [TOKENS, 1]
    begin,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    STEP: tl.constexpr = 0,
):
    """Returns the sum of the range that begins at `begin`, [FEATURES, TOKENS] float32. The number of
    iterations is a constant: ptxas runs wgmma one by one behind a loop that may have none. Beyond the last
    value of K, or of a leaf, zeros are added, which change nothing. STEP: the length of a leaf; 0: there are
    none."""
    acc = tl.zeros([FEATURES, TOKENS], tl.float32)
    LENGTH: tl.constexpr = STEP if STEP > 0 else IN
    end = begin + STEP if STEP > 0 else IN
    for step in range(0, RANGE, DEPTH):
        at = begin + step
        if LENGTH % RANGE == 0:
            w = tl.load(weights + at, mask=ours, other=0.0)
            x = tl.load(inputs + at, mask=real, other=0.0)
        else:
            inside = (at + tl.arange(0, DEPTH) < end)[None, :]
            w = tl.load(weights + at, mask=ours & inside, other=0.0)
            x = tl.load(inputs + at, mask=real & inside, other=0.0)
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    return acc


@triton.jit
def product_sums(
    weights,  # [FEATURES, DEPTH] pointers to the first values of K
    inputs,  # [TOKENS, DEPTH]
    bias,  # of the weight's rows, or None
    feature,  # [FEATURES]
    features,
    real,  # [TOKENS, 1]
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    LEAVES: tl.constexpr = 0,
    STEP: tl.constexpr = 0,
):
    """Returns what a program sums, [FEATURES, TOKENS] float32: one range (SPLIT), or all of them and the
    bias. LEAVES, STEP: ranges that are added as a tree, and their length; 0: one after the other."""
    ours = (feature < features)[:, None]
    if SPLIT:
        begin = tl.program_id(2) * (STEP if STEP > 0 else RANGE)
        total = range_sum(weights, inputs, ours, real, begin, IN, RANGE, FEATURES, TOKENS, DEPTH, STEP)
    else:
        total = tl.zeros([FEATURES, TOKENS], tl.float32)
        if LEAVES > 0:  # zeros that are added first change nothing: a sum of products is never -0
            FOUR: tl.constexpr = 4 if LEAVES > 4 else LEAVES
            TWO: tl.constexpr = 2 if LEAVES > 2 else LEAVES
            for first in range(0, LEAVES, 4):
                four = tl.zeros([FEATURES, TOKENS], tl.float32)
                for second in range(0, FOUR, 2):
                    two = tl.zeros([FEATURES, TOKENS], tl.float32)
                    for leaf in range(TWO):
                        begin = (first + second + leaf) * STEP
                        two += range_sum(
                            weights, inputs, ours, real, begin, IN, RANGE, FEATURES, TOKENS, DEPTH, STEP
                        )
                    four += two
                total += four
        else:
            for begin in range(0, IN, RANGE):
                total += range_sum(weights, inputs, ours, real, begin, IN, RANGE, FEATURES, TOKENS, DEPTH)
        if bias is not None:
            total += tl.load(bias + feature, mask=feature < features, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit
def store_sums(
    out,  # [T, N]; SPLIT: [ranges, T, N] float32
    total,  # [FEATURES, TOKENS]
    row,  # [TOKENS] int64
    rows,  # T
    feature,  # [FEATURES]
    features,
    real,  # [TOKENS, 1]
    SPLIT: tl.constexpr,
):
    """Stores what a program has summed."""
    at = row
    if SPLIT:
        at += tl.program_id(2).to(tl.int64) * rows
    target = out + at[:, None] * features + feature[None, :]
    inside = real & (feature < features)[None, :]
    tl.store(target, tl.trans(total).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _linear_kernel(
    x,  # [T, K]
    weight,  # [N, K]
    bias,  # [N], or None
    out,  # [T, N]; SPLIT: [ranges, T, N] float32
    tokens,
    features,
    x_stride,
    IN: tl.constexpr,
    RANGE: tl.constexpr,
    FEATURES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    LEAVES: tl.constexpr,
    STEP: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    k = tl.arange(0, DEPTH)
    weights = weight + feature.to(tl.int64)[:, None] * IN + k[None, :]
    inputs = x + token.to(tl.int64)[:, None] * x_stride + k[None, :]
    real = (token < tokens)[:, None]
    total = product_sums(
        *(weights, inputs, bias, feature, features, real),
        *(IN, RANGE, FEATURES, TOKENS, DEPTH, SPLIT, LEAVES, STEP),
    )
    store_sums(out, total, token.to(tl.int64), tokens, feature, features, real, SPLIT)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    wide: bool = False,
    sizes: LinearSizes | None = None,
    order: SumOrder | None = None,
) -> torch.Tensor:
    """[T, K] -> [T, N]. wide: the result is float32. sizes: launch parameters, which change no bit; None:
    those of choose_sizes(). order: of sums; None: that of a matrix of which no other rank has a part."""
    (tokens, depth), features = x.shape, weight.shape[0]
    assert x.stride(1) == 1 and weight.is_contiguous() and weight.shape[1] == depth
    assert x.dtype == weight.dtype and (bias is None or bias.is_contiguous())
    out = torch.empty((tokens, features), dtype=torch.float32 if wide else x.dtype, device=x.device)
    if not tokens:
        return out
    processors = 0 if x.device.type == "cpu" else num_processors(x.device)

    def choose(ranges: int) -> LinearSizes:
        capability, leaves = capability_of(x.device), 0 if order is None else order.leaves
        return choose_sizes(tokens, features, ranges, x.dtype, processors, capability, leaves)

    launch = launch_of(out, depth, sizes or choose, order=order)
    _linear_kernel[launch.grid](
        x,
        weight,
        bias,
        launch.target,
        tokens,
        features,
        x.stride(0),
        DEPTH=launch.depth,
        LEAVES=launch.leaves,
        STEP=launch.step if launch.leaves else 0,
        **launch.constants,
    )
    launch.add_ranges(bias)
    return out
