"""Penalties, bias and masks of the vocabulary: changes of logits before a token is chosen.

logits [A, V] float32, changed in place; of A rows, U are changed. On CUDA:
kernels.triton.sampling.adjust_logits."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Words = npt.NDArray[np.int32]
"""[ceil(V / 32)]: bit i of word w is that of token 32 w + i."""


class Bitmask(NamedTuple):
    """A bit per token of the vocabulary: whether it may be chosen."""

    words: Words
    address: int  # of the words, which stay there


class PenaltyHistory:
    """A row that is penalized: tokens, with repeats, and their counts [V] int32 in the output."""

    def __init__(self, strengths: Sequence[float], tokens: Sequence[int], counts: Words) -> None:
        """strengths: repetition, frequency, presence; (1, 0, 0) changes nothing."""
        self.strengths, self.tokens, self.counts = array("f", strengths), array("q", tokens), counts
        self._count = counts.data  # Python adds to a number in a third of numpy's time
        self.addresses = counts.ctypes.data, self.strengths.buffer_info()[0]
        """Of counts and strengths, which stay there, as the tokens do not."""

    def copy(self) -> "PenaltyHistory":
        """Returns a history that grows by itself."""
        return PenaltyHistory(self.strengths, self.tokens, self.counts.copy())

    def append(self, token: int) -> None:
        """Appends a token of the output."""
        self.tokens.append(token)
        self._count[token] += 1


def penalties(
    logits: torch.Tensor,
    batch_index: torch.Tensor,
    history: torch.Tensor,
    counts: torch.Tensor,
    strengths: torch.Tensor,
) -> None:
    """Penalizes in place, in float32 and in this order:

        x <- x / r  where x > 0,  x * r  elsewhere      for tokens of the history
        x <- x - f * count - p * (count > 0)

    batch_index [U] int64: which rows of logits. history [U, L] int64: token ids; repeats are welcome,
    as they all write the same value. counts [U, L]: how often the token is in the output.
    strengths [U, 3] float32: repetition, frequency, presence; (1, 0, 0) changes nothing.

    Only the entries of the history are touched: U * L, not U * V. On a CPU with llvmlite
    kernels.cpu.sampling.logits_processors reads each token once: torch takes many passes. One core, 32 rows
    of 152,000 logits, histories of 200: 0.04 ms and 0.65; of 4,096: 1.4 ms and 24."""
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + history
    x = flat[index]
    repetition, frequency, presence = strengths.unsqueeze(-1).unbind(1)
    x = torch.where(x > 0, x / repetition, x * repetition)
    x -= frequency * counts
    x -= presence * (counts > 0)
    flat.scatter_(0, index.view(-1), x.view(-1))


def add_logit_bias(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> None:
    """Adds given numbers to the logits of given tokens, in float32. batch_index [U] int64, token_ids [U, N]
    int64, bias [U, N] float32.

    A token that is given more than once must have the same bias each time; it is added once. (So a
    shorter list is padded by repeating its first entry.)
    """
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + token_ids
    flat.scatter_(0, index.view(-1), (flat[index] + bias).view(-1))


def apply_bitmask(logits: torch.Tensor, batch_index: torch.Tensor, words: torch.Tensor) -> None:
    """Masks the tokens whose bit is not set: their logits become -inf. On a CPU.

    batch_index [U] int64, distinct; words [U, ceil(V / 32)] int32, contiguous: bit i of word w belongs to
    token 32 w + i. U * V entries are read and written."""
    masked = _masked(words, logits.shape[-1])
    if len(batch_index) == len(logits) and bool((batch_index[1:] > batch_index[:-1]).all()):
        logits.masked_fill_(masked, -torch.inf)
        return
    for a, row in zip(batch_index.tolist(), masked, strict=True):
        logits[a].masked_fill_(row, -torch.inf)


def _masked(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[U, V] bool: whether the token is masked."""
    bits = np.unpackbits((~words).numpy().view(np.uint8), axis=-1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits).view(torch.bool)
