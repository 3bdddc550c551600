"""The operations of a sampler by Triton's kernels. Nothing of a step is read by the host. Imports triton."""

import torch

from kernels.sampling_ops import SamplingOps
from kernels.triton.sampling.adjust_logits import adjust_logits
from kernels.triton.sampling.draws import Filters, RowParameters, row_parameters
from kernels.triton.sampling.filtered_sample import filtered_sample
from kernels.triton.sampling.forbid_tokens import forbid_tokens
from kernels.triton.sampling.logprobs import MOST, USUAL, token_logprobs, top_n
from kernels.triton.sampling.sample import argmax, sample
from kernels.triton.sampling.tile_stats import tile_stats
from kernels.triton.sampling.typical_p import typical_p
from kernels.triton.step.token_history import count_tokens, record_tokens


class TritonSampling(SamplingOps):
    """Histories are dense tables on the device: adjust_logits() penalizes, adds bias and masks in one
    pass."""

    MOST_RANKED, TOP_N_SIZES = MOST, (USUAL, MOST)
    """Tokens that ranking() finds without sorting, and the numbers that kernels are compiled for."""
    FILTERED = tuple(Filters.__dataclass_fields__)
    """The columns of filters that one kernel applies."""

    adjust_logits = staticmethod(adjust_logits)
    argmax = staticmethod(argmax)
    count_tokens = staticmethod(count_tokens)
    prohibit = staticmethod(forbid_tokens)
    record_tokens = staticmethod(record_tokens)
    row_parameters = staticmethod(row_parameters)
    token_logprobs = staticmethod(token_logprobs)

    @staticmethod
    def ranking(logits: torch.Tensor, n: int) -> torch.Tensor:
        """Above MOST_RANKED, by torch."""
        if n > MOST:
            return SamplingOps.ranking(logits, n)
        return top_n(logits, min(USUAL if n <= USUAL else MOST, logits.shape[1]))[:, :n]

    def draw(
        self, logits: torch.Tensor, rows: RowParameters, filtered: bool, by_typical_p: bool
    ) -> torch.Tensor:
        """Returns tokens [A] int64 for logits [A, V] float32, which it overwrites; -1 where the largest logit
        is not finite. Steps of greedy rows alone: argmax(). In as few launches as a step's rows need.

        filtered: whether some row has a filter of FILTERED. by_typical_p: whether some row has a typical-p.
        """
        if by_typical_p:
            typical_p(logits, rows.draws.temperature, rows.filters, rows.typical_p)
        stats = tile_stats(logits, rows.draws.temperature, groups=filtered)
        tokens = sample(logits, rows.draws, stats)
        if filtered:
            filtered_sample(logits, rows.draws, rows.filters, stats, tokens)
        return tokens
