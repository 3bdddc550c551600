"""Weights of tokens before normalization, in float32: w = exp((x - max x) / T) = 2 ** ((x - max x) * f).

A multiplication by f = log2(e) / T, which a program computes once, and one exp2: about six instructions. In
float64 it was some hundred with a division, of which a third ran at a half to a sixty-fourth of the rate.
Sums of weights beyond a tile are float64.
"""

import triton
import triton.language as tl


@triton.jit
def factor_of(temperature):
    """Returns f. temperature: float32, above 0; so small that f overflows, f is finite and only max x has a
    weight."""
    return tl.minimum(1.4426950408889634 / temperature, 3.0e38)


@triton.jit
def weights_of(x, top, factor):
    """Returns the weights of logits x [N], float32; top: the largest logit of the row or tile, finite."""
    return tl.exp2((x - top) * factor)
