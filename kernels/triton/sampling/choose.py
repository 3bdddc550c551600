"""From logits to tokens on CUDA: kernels.ops.sampling.choose, in as few launches as a step's rows need."""

import torch

from kernels.triton.sampling.filtered_sample import Filters, filtered_sample
from kernels.triton.sampling.sample import Draws, sample
from kernels.triton.sampling.tile_stats import tile_stats
from kernels.triton.sampling.typical_p import typical_p


def choose_tokens(
    logits: torch.Tensor,
    draws: Draws,
    filters: Filters,
    filtered: bool = False,
    typical_share: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns tokens [A] int64 for logits [A, V] float32, which it overwrites; -1 where the largest logit is
    not finite. Steps of greedy rows alone: kernels.triton.sampling.sample.argmax.

    filtered: whether some row has a filter. typical_share: [A] float32; None: no row has a typical-p.
    """
    if typical_share is not None:
        typical_p(logits, draws.temperature, filters, typical_share)
    stats = tile_stats(logits, draws.temperature, groups=filtered)
    tokens = sample(logits, draws, stats)
    if filtered:
        filtered_sample(logits, draws, filters, stats, tokens)
    return tokens
