"""The k highest logits of each row, in ascending order of their ids; the lower id first among equals.

logits [A, V] float32 -> ids [A, n] int64 and scores [A, n] float32. What follows then works on n
candidates instead of V tokens.

On CUDA: kernels.triton.sampling.filtered_sample.
"""

import torch

from kernels.ops.sampling.ranking import ranking, ranking_reference


def top_k_reference(logits: torch.Tensor, k: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula, row by row."""
    ids = ranking_reference(logits, n)
    masked = torch.full_like(logits, -torch.inf)
    for a, count in enumerate(k.tolist()):
        masked[a, ids[a, :count]] = logits[a, ids[a, :count]]
        ids[a] = ids[a].sort().values
    return ids, masked.gather(1, ids)


def top_k(logits: torch.Tensor, k: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k [A] int64: how many to keep. n: the largest of k, which the caller knows without waiting for the
    device.

    A row with k < n is padded by its next candidates, with the score -inf.
    """
    ids, rank = ranking(logits, n).sort()
    scores = logits.gather(1, ids).masked_fill_(rank >= k[:, None], -torch.inf)
    return ids, scores
