"""The operations of a sampler by torch, as kernels.torch_ops has those of layers."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.ops.sampling.choose import choose_tokens
from kernels.ops.sampling.columns import UNKNOWN, SamplingColumns
from kernels.ops.sampling.logits_processors import (
    Bitmask,
    PenaltyHistory,
    add_logit_bias,
    apply_bitmask,
    penalties,
)
from kernels.ops.sampling.logprobs import log_softmax, ranking, token_ranks
from kernels.ops.sampling.token_masks import prohibit


class SamplingOps:
    """Operations on logits [A, V] float32, contiguous, of A rows. Base of compiled ones, which choose the
    same tokens: kernels.cpu.sampling.api, and kernels.triton.sampling.ops for a CUDA device."""

    copies_logits = True
    """Whether choose_tokens() copies what it works on, so that few rows at a time are faster."""

    choose_tokens = staticmethod(choose_tokens)
    add_logit_bias = staticmethod(add_logit_bias)
    prohibit = staticmethod(prohibit)
    log_softmax = staticmethod(log_softmax)
    ranking = staticmethod(ranking)
    token_ranks = staticmethod(token_ranks)

    def choose_unknown(
        self,
        tokens: torch.Tensor,
        logits: Callable[[], torch.Tensor],
        rows: Sequence[int],
        columns: SamplingColumns,
    ) -> None:
        """Chooses those of the tokens [A] int64 of rows [A] that are UNKNOWN, in place. logits: returns
        [A, V], and is called if there are any."""
        for index in np.flatnonzero(tokens.numpy() == UNKNOWN).tolist():
            tokens[index] = choose_tokens(logits()[index : index + 1], rows[index : index + 1], columns)[0]

    def penalize(
        self, logits: torch.Tensor, users: Sequence[int], histories: Sequence[PenaltyHistory]
    ) -> None:
        """Penalizes rows in place. users: [U] their distinct indexes."""
        for user, history in zip(users, histories, strict=True):
            tokens = torch.tensor(history.tokens, dtype=torch.int64)[None]
            counts, strengths = torch.from_numpy(history.counts), torch.tensor([list(history.strengths)])
            penalties(logits, torch.tensor([user]), tokens, counts[tokens], strengths)

    def mask(self, logits: torch.Tensor, users: Sequence[int], masks: Sequence[Bitmask]) -> None:
        """Masks what the bits of rows leave out, in place. users: [U] their distinct indexes."""
        words = torch.from_numpy(np.stack([mask.words for mask in masks]))
        apply_bitmask(logits, torch.tensor(users), words)
