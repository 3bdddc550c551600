"""Statistics of each tile of a row of logits, for choosing a token: one read, any number of processors.

    largest[a, i] = max of the tile; +inf if it holds NaN or +inf: the model broke down
    best[a, i]    = its id, the lowest among equals
    mass[a, i]    = sum_j exp((x[a, j] - largest[a, i]) / T[a]) over the tile; 0 if T is 0
    groups[a, g]  = max of each GROUP logits; where filters ask for it

logits: [A, V] float32, rows contiguous; T: [A] float32. Tiles of TILE logits; sums within one are float32 in
Triton's tree order, at most 2,048 values between 0 and 1, and float64 from there on. Bytes moved: 4 * A * V
read; the results are a hundredth of it, a twenty-fifth with groups. Speed: not yet measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.triton.sampling.draws import factor_of, weights_of

TILE = 2048
"""Logits per program: 75 programs for each row of a vocabulary of 152,000, 16 logits per thread."""
GROUP = 128
"""1,188 groups for 152,000 logits: enough for the k of nearly every request
(kernels.triton.sampling.filtered_sample)."""


@dataclass(frozen=True)
class TileStats:
    """The statistics of A rows. I = ceil(V / TILE)."""

    largest: torch.Tensor  # [A, I] float32
    best: torch.Tensor  # [A, I] int32
    mass: torch.Tensor  # [A, I] float64
    groups: torch.Tensor | None  # [A, I * TILE / GROUP] float32; -inf behind the last token


@triton.jit
def _stats_kernel(
    logits,  # [A, V]
    temperature,  # [A]
    largest,  # [A, I]
    best,  # [A, I]
    mass,  # [A, I]
    groups,  # [A, I * TILE / GROUP]
    stride,
    vocab_size,
    DRAW: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = row * tl.num_programs(1) + tile
    ids = tile * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row * stride + ids, mask=ids < vocab_size, other=-float("inf"))
    broken = tl.max(((x != x) | (x == float("inf"))).to(tl.int32), 0)
    top = tl.max(x, 0)
    tl.store(largest + at, tl.where(broken != 0, float("inf"), top))
    tl.store(best + at, tile * TILE + tl.argmax(x, 0, tie_break_left=True))
    if GROUPS:
        of_groups = tl.max(tl.reshape(x, (TILE // GROUP, GROUP)), 1)
        tl.store(groups + at * (TILE // GROUP) + tl.arange(0, TILE // GROUP), of_groups)
    if DRAW:
        total = tl.zeros([], tl.float32)
        heat = tl.load(temperature + row)
        if (heat > 0) & (top > -float("inf")) & (broken == 0):
            total = tl.sum(weights_of(x, top, factor_of(heat)), 0)
        tl.store(mass + at, total.to(tl.float64))


def tile_stats(logits: torch.Tensor, temperature: torch.Tensor | None, groups: bool = False) -> TileStats:
    """Returns the statistics of logits [A, V]. temperature: [A]; None: no row draws, and mass is not
    written."""
    rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    tiles, device = triton.cdiv(vocab_size, TILE), logits.device
    stats = TileStats(
        torch.empty((rows, tiles), dtype=torch.float32, device=device),
        torch.empty((rows, tiles), dtype=torch.int32, device=device),
        torch.empty((rows, tiles), dtype=torch.float64, device=device),
        torch.empty((rows, tiles * TILE // GROUP), dtype=torch.float32, device=device) if groups else None,
    )
    if rows:
        _stats_kernel[(rows, tiles)](
            logits,
            temperature,
            stats.largest,
            stats.best,
            stats.mass,
            stats.groups,
            logits.stride(0),
            vocab_size,
            DRAW=temperature is not None,
            GROUPS=groups,
            GROUP=GROUP,
            TILE=TILE,
            num_warps=4,
        )
    return stats
