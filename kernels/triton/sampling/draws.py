"""Parameters of the rows of a step on the device, and what every draw computes of them: the uniform number,
and the weights of tokens before normalization, w = exp((x - max x) / T) = 2 ** ((x - max x) * f) in
float32."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.ops.sampling.columns import FLOATS, MIRRORED


@dataclass(frozen=True)
class Draws:
    """How each row's token is chosen, on the device."""

    temperature: torch.Tensor  # [A] float32; 0: greedy
    seeds: torch.Tensor  # [A] int64, the bits of a uint64
    indexes: torch.Tensor  # [A] int32: of the sequence within its request
    positions: torch.Tensor  # [A] int32: of the token within the output


@dataclass(frozen=True)
class Filters:
    """Filters of each row, on the device. A row with none of them is skipped."""

    top_k: torch.Tensor  # [A] int32; 0: off
    top_p: torch.Tensor  # [A] float32; 1: off
    min_p: torch.Tensor  # [A] float32; 0: off


@dataclass(frozen=True)
class RowParameters:
    """Parameters of the rows of a step."""

    draws: Draws
    filters: Filters
    typical_p: torch.Tensor  # [A] float32; 1: off


def row_parameters(numbers: torch.Tensor, seeds: torch.Tensor) -> RowParameters:
    """Returns the parameters in numbers [MIRRORED, A] int32, as SamplingColumns.mirrored() has them, and
    seeds [A] int64."""
    values = {
        name: column.view(torch.float32) if name in FLOATS else column
        for name, column in zip(MIRRORED, numbers, strict=True)
    }
    return RowParameters(
        Draws(values["temperature"], seeds, values["sequence_index"], values["position"]),
        Filters(*(values[name] for name in Filters.__dataclass_fields__)),
        values["typical_p"],
    )


@triton.jit
def uniform53(seed, index, position):
    """Returns the uniform number of (seed, sequence index, position), float64 in [0, 1): as
    kernels.ops.sampling.choose, bit for bit. seed: int64 or uint64; index, position: 32 bits.

        words = Philox4x32-10(counter = (index, position, 0, 0), key = (seed mod 2^32, seed div 2^32))
        u     = floor((2^32 * words[0] + words[1]) / 2^11) / 2^53

    Triton's own generator has the constants and the order of Random123."""
    zero = index.to(tl.uint32) * 0
    high, low, _, _ = tl.philox(seed, index.to(tl.uint32), position.to(tl.uint32), zero, zero)
    bits = ((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def factor_of(temperature):
    """Returns f = log2(e) / T. temperature: float32, above 0; so small that f overflows, f is finite and only
    max x has a weight."""
    return tl.minimum(1.4426950408889634 / temperature, 3.0e38)


@triton.jit
def weights_of(x, top, factor):
    """Returns the weights of logits x [N], float32: exp((x - top) / T). top: the largest logit of the row or
    tile, finite.

    A multiplication by a factor that a program computes once, and one exp2: about six instructions. In
    float64 it was some hundred with a division, of which a third ran at a half to a sixty-fourth of the rate.
    Sums of weights beyond a tile are float64.
    """
    return tl.exp2((x - top) * factor)
