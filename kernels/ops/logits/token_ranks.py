"""Where given tokens stand among all of their row: 1 for the highest score, of equals the lower id first.

    rank(x, t) = 1 + #{ i : x_i > x_t } + #{ i < t : x_i = x_t }

scores [A, V] float32, tokens [A, K] int64 -> [A, K] int64: the rank of each token in
kernels.ops.sampling.ranking, without sorting anything. Temporaries are bools, [A, V]: give it a bounded
number of rows at a time. A token whose score is NaN has rank 1.

On CUDA: kernels.triton.sampling.token_logprobs.
"""

import torch


def token_ranks_reference(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The formula: counts, one score at a time."""
    ranks = [
        [1 + sum(x > row[t] or (x == row[t] and i < t) for i, x in enumerate(row)) for t in chosen]
        for row, chosen in zip(scores.tolist(), tokens.tolist(), strict=True)
    ]
    return torch.tensor(ranks, device=tokens.device).view(tokens.shape)


def token_ranks(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Counts for one column of tokens after another, since K is small."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    ranks = torch.empty_like(tokens)
    for column in range(tokens.shape[1]):
        token = tokens[:, column, None]
        score = scores.gather(1, token)
        before = (scores == score) & (ids < token)
        ranks[:, column] = (scores > score).count_nonzero(-1) + before.count_nonzero(-1) + 1
    return ranks
