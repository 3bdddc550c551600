"""Masks of the whole vocabulary, one bit per token: a token whose bit is not set has the logit -inf.

logits [A, V] float32, changed in place; of A rows, U have a mask of W = ceil(V / 32) words: bit i of word w
belongs to token 32 w + i. What is read and written: U * V entries.
"""

import numpy as np
import torch


def apply_bitmask_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    """The formula, token by token. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        for token in range(logits.shape[-1]):
            if not int(words[u, token // 32]) >> token % 32 & 1:
                result[a, token] = -torch.inf
    return result


def apply_bitmask(logits: torch.Tensor, batch_index: torch.Tensor, words: torch.Tensor) -> None:
    """Masks tokens on a CPU. batch_index [U] int64, distinct; words [U, W] int32, contiguous."""
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
