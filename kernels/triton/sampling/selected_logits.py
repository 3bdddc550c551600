"""Logits of selected rows of the hidden state, against this rank's share of the vocabulary.

    logits[a, v] = hidden[rows[a]] . table[v]      v < V'
    logits[a, v] = -inf                            V' <= v < W: a share that is padded to the others' width

hidden: [T, E], rows may be strided; rows: [A] integers, of which a negative one is padding and gets zeros;
table: [V', E] contiguous, of hidden's dtype: float32, float16 or bfloat16. logits: [A, W] float32, as the
sums are: what a product in the dtype would round to 8 or 11 bits, and torch then widens again, is stored as
it is.

Bytes moved: the table once, A * E values per VOCAB rows of it (from L2), and 4 * A * W. A decode step of
the 8B shape reads 1.05 GB of table for any A up to about 180, where the matrix units begin to decide. The
table is the left operand: its VOCAB rows fill the M of wgmma, and the few selected rows are the N, which
may be 16. Programs of the same rows of the table follow one another, so that it comes from memory once.
Speed: not yet measured on a GPU; torch.mm of the gathered rows is the peer.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2


@dataclass(frozen=True)
class Sizes:
    """Launch parameters of one program."""

    vocab: int  # rows of the table
    rows: int  # of the hidden state
    depth: int  # values of E at a time
    warps: int
    stages: int


def choose_sizes(rows: int, width: int, dtype: torch.dtype) -> Sizes:
    """Returns the launch parameters. 128 rows of the table fill two groups of warps. 64 values of E are 128
    bytes, the width of a swizzle; four stages of them keep 48 KB of the table in flight. Logits of an odd
    width (GPT-2's 50257) are stored one by one, each with an address: 128 rows of them spill. Float32 has no
    matrix unit that does not round."""
    least = max(16, next_power_of_2(rows))
    if dtype == torch.float32:
        return Sizes(64, min(32, least), 16, 4, 2)
    least = min(128 if width % 16 == 0 else 64, least)
    return Sizes(128, least, 64, 4 if least <= 32 else 8, 4)


def selected_logits_reference(hidden: torch.Tensor, rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Computes the formula row by row, in float32 or wider: [A, V']."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    zero = torch.zeros(table.shape[0], dtype=wide)
    return torch.stack([table.to(wide) @ hidden[a].to(wide) if a >= 0 else zero for a in rows.tolist()])


@triton.jit(do_not_specialize=["count"])
def _logits_kernel(
    hidden,  # [T, E]
    rows,  # [A]
    table,  # [V', E]
    logits,  # [A, W]
    count,
    held,
    width,
    hidden_stride,
    DEPTH_OF_ALL: tl.constexpr,
    VOCAB: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    a = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    v = tl.program_id(1) * VOCAB + tl.arange(0, VOCAB)
    row = tl.load(rows + a, mask=a < count, other=-1).to(tl.int64)
    e = tl.arange(0, DEPTH)
    ours, real = (v < held)[:, None], (row >= 0)[:, None]
    weights = table + v.to(tl.int64)[:, None] * DEPTH_OF_ALL + e[None, :]
    states = hidden + row[:, None] * hidden_stride + e[None, :]
    acc = tl.zeros([VOCAB, ROWS], tl.float32)
    for begin in range(0, DEPTH_OF_ALL, DEPTH):
        if DEPTH_OF_ALL % DEPTH == 0:
            w = tl.load(weights + begin, mask=ours, other=0.0)
            x = tl.load(states + begin, mask=real, other=0.0)
        else:
            inside = (begin + e < DEPTH_OF_ALL)[None, :]
            w = tl.load(weights + begin, mask=ours & inside, other=0.0)
            x = tl.load(states + begin, mask=real & inside, other=0.0)
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    acc = tl.where(ours, acc, -float("inf"))
    at = logits + a.to(tl.int64)[:, None] * width + v[None, :]
    tl.store(at, tl.trans(acc), mask=(a < count)[:, None] & (v < width)[None, :])


def selected_logits(
    hidden: torch.Tensor, rows: torch.Tensor, table: torch.Tensor, width: int | None = None
) -> torch.Tensor:
    """Returns logits [A, W] float32 of hidden [T, E], rows [A] and table [V', E]. width: W; default V'."""
    (held, depth), count = table.shape, rows.shape[0]
    width = held if width is None else width
    assert hidden.stride(1) == 1 and hidden.shape[1] == depth and table.is_contiguous() and width >= held
    assert hidden.dtype == table.dtype and rows.is_contiguous()
    logits = torch.empty((count, width), dtype=torch.float32, device=hidden.device)
    if count:
        sizes = choose_sizes(count, width, hidden.dtype)
        grid = triton.cdiv(count, sizes.rows), triton.cdiv(width, sizes.vocab)
        _logits_kernel[grid](
            hidden,
            rows,
            table,
            logits,
            count,
            held,
            width,
            hidden.stride(0),
            DEPTH_OF_ALL=depth,
            VOCAB=sizes.vocab,
            ROWS=sizes.rows,
            DEPTH=sizes.depth,
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
    return logits
