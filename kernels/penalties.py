"""Repetition, frequency and presence penalties, in float32 and in this order.

    x <- x / r  where x > 0,  x * r  elsewhere      for tokens of the history
    x <- x - f * count - p * (count > 0)

logits [A, V] float32, changed in place; of A rows, U are penalized. Only the entries of the history
are touched: U * L, not U * V.

On a CPU with llvmlite the tables that histories lie in are read where they are, row by row, each token once
(kernels.cpu.sampling_penalties): torch gathers first, then takes many passes. One core, 32 rows of 152,000
logits, histories of 200: 0.04 ms and 0.65; of 4,096: 1.4 ms and 24.

On CUDA: kernels.gpu.adjust_logits.
"""

import numpy as np
import torch

from kernels.sampling_kernels import SamplingKernels


def penalties_reference(
    logits: torch.Tensor,
    batch_index: torch.Tensor,
    history: torch.Tensor,
    counts: torch.Tensor,
    strengths: torch.Tensor,
) -> torch.Tensor:
    """The same, one token at a time, out of place."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        repetition, frequency, presence = strengths[u]
        for token, count in zip(history[u].tolist(), counts[u], strict=True):
            x = logits[a, token]
            x = x / repetition if x > 0 else x * repetition
            result[a, token] = x - frequency * count - presence * (count > 0)
    return result


def penalties(
    logits: torch.Tensor,
    batch_index: torch.Tensor,
    history: torch.Tensor,
    counts: torch.Tensor,
    strengths: torch.Tensor,
) -> None:
    """Penalizes in place.

    batch_index [U] int64: which rows of logits. history [U, L] int64: token ids; repeats are welcome,
    as they all write the same value. counts [U, L]: how often the token is in the output.
    strengths [U, 3] float32: repetition, frequency, presence; (1, 0, 0) changes nothing.
    """
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + history
    x = flat[index]
    repetition, frequency, presence = strengths.unsqueeze(-1).unbind(1)
    x = torch.where(x > 0, x / repetition, x * repetition)
    x -= frequency * counts
    x -= presence * (counts > 0)
    flat.scatter_(0, index.view(-1), x.view(-1))


class TablePenalties:
    """The compiled function, on tables: a row of the logits finds what it needs by its slot."""

    def __init__(self, kernels: SamplingKernels, vocab_size: int) -> None:
        self._kernels, self._vocab_size = kernels, vocab_size
        # Of each thread: which tokens it has seen in a row. All 0 between rows.
        self._seen = torch.zeros(kernels.threads.count, vocab_size, dtype=torch.uint8)

    def apply(
        self,
        logits: torch.Tensor,
        users: list[int],
        slots: list[int],
        lengths: list[int],
        history: torch.Tensor,
        counts: torch.Tensor,
        strengths: torch.Tensor,
    ) -> None:
        """Penalizes in place. users [U]: which rows of logits. slots, lengths [U]: where in the tables, and
        how much of the history. history [slots, L] int64, counts [slots, V] int32, strengths [slots, 3]
        float32.
        """
        assert logits.is_contiguous() and logits.dtype == torch.float32
        assert history.is_contiguous() and counts.is_contiguous() and strengths.is_contiguous()
        lines = np.array([users, slots, lengths], np.int64)
        record = np.array(
            [
                logits.data_ptr(),
                self._vocab_size,
                *(line.ctypes.data for line in lines),
                history.data_ptr(),
                history.shape[1],
                counts.data_ptr(),
                strengths.data_ptr(),
            ],
            np.int64,
        )
        seen = [line.data_ptr() for line in self._seen]
        # A token costs some ten times as much as one that is read in order.
        self._kernels.threads.run(
            self._kernels.penalize_rows, record.ctypes.data, len(users), 10 * sum(lengths), seen
        )
