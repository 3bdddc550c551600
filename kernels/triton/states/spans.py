"""What programs of kernels.triton.states read of the rows of a step."""

import triton
import triton.language as tl


@triton.jit
def span_of(
    rows,  # [R]
    starts,  # [R]
    num_rows,  # [1]
    firsts,  # [R + 1]
):
    """Returns of the row that a program has: its number, int64, -1 for padding; the position of its first
    token; the index of that in the step, int64; and how many tokens it has."""
    i = tl.program_id(0)
    first = tl.load(firsts + i)
    row = tl.where(i < tl.load(num_rows), tl.load(rows + i), -1)
    return row.to(tl.int64), tl.load(starts + i), first.to(tl.int64), tl.load(firsts + i + 1) - first


@triton.jit
def save_of(
    saves,  # [4, R]
    number,
    pitch,
):
    """Returns behind how many tokens of a program's row its state is copied, and to which row, int64. number:
    0 or 1. Behind 0 tokens: it is not."""
    at = saves + 2 * number * pitch + tl.program_id(0)
    return tl.load(at), tl.load(at + pitch).to(tl.int64)


@triton.jit
def softplus(x):
    """log(1 + exp(x)), float32, also where it is small: log(1 + u) is twice the sum of s ** n / n over odd n,
    with s = u / (2 + u), at most 1 / 3."""
    u = tl.exp(-tl.abs(x))
    s = u / (2.0 + u)
    q = s * s
    total = q * (1.0 / 15.0) + (1.0 / 13.0)
    total = total * q + (1.0 / 11.0)
    total = total * q + (1.0 / 9.0)
    total = total * q + (1.0 / 7.0)
    total = total * q + (1.0 / 5.0)
    total = total * q + (1.0 / 3.0)
    total = total * q + 1.0
    return tl.maximum(x, 0.0) + 2.0 * s * total
