"""Log-probabilities, and the rank of tokens by their scores. On CUDA: kernels.triton.sampling.logprobs."""

import numpy as np
import torch

SHORT = 4096
PARTS = 32
"""Of a long list, whose largest scores by place in the part are compared first."""


def ranking_reference(scores: torch.Tensor, n: int) -> torch.Tensor:
    """The formula: Python's sort, row by row."""
    rows = [sorted(range(len(row)), key=lambda i: (-row[i], i))[:n] for row in scores.tolist()]
    return torch.tensor(rows, device=scores.device).view(len(rows), n)


def ranking(scores: torch.Tensor, n: int) -> torch.Tensor:
    """Returns the ids [A, n] int64 of the n <= W highest of scores [A, W] float32, in descending order, the
    lower id first among equals. The rank of NaN is arbitrary.

        ranking(scores, n)[a] = first n of sorted(range(W), key=lambda i: (-scores[a, i], i))

    torch.topk leaves the order of equals open, and so does which of them it returns; therefore score and id
    are packed into one int64 key, which has no equals: the order-preserving bits of the float above, the
    complement of the id below. A short list is sorted as it is, which saves making the keys; on a CPU they
    are made of rows alone that have equals among the first n + 1.

    Measured on one core, A = 1: W = 152,000: n = 5 0.05 ms, n = W 12 ms, and 21 ms by the stable sort. W =
    1,024: n = 256 29 us; n = W 34 us, and 16 us by the stable sort.

    On CUDA: kernels.triton.sampling.logprobs.
    """
    width = scores.shape[-1]
    if n < width and scores.device.type == "cpu":
        best, ids = _topk(scores, n + 1)
        ids, tied = ids[:, :n].contiguous(), ~(best[:, :-1] > best[:, 1:]).all(-1)
        if bool(tied.any()):
            ids[tied] = _keys(scores[tied]).topk(n).indices
        return ids
    if n < width:
        return _keys(scores).topk(n).indices
    if width <= SHORT:
        return torch.sort(scores, stable=True, descending=True).indices
    return _keys(scores).sort(descending=True).indices


def _topk(scores: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch.topk, in an eighth of its time where scores [A, W] are long and n is small: the n highest are
    among the n columns of parts with the highest ones, and what no part has."""
    size = scores.shape[1] // PARTS
    if size < SHORT // PARTS or size < 4 * n:
        return scores.topk(n)
    end = PARTS * size
    parts = scores[:, :end].view(len(scores), PARTS, size)
    columns = parts.amax(1).topk(n).indices[:, None]
    found = parts.gather(2, columns.expand(-1, PARTS, -1)).flatten(1)
    ids = (columns + size * torch.arange(PARTS)[:, None]).flatten(1)
    rest = torch.arange(end, scores.shape[1]).expand(len(scores), -1)
    best, at = torch.cat((found, scores[:, end:]), 1).topk(n)
    return best, torch.cat((ids, rest), 1).gather(1, at)


def _keys(scores: torch.Tensor) -> torch.Tensor:
    """[A, W] float32 -> [A, W] int64, a larger key ranks before a smaller one; no two are equal."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 = 0.0: the two zeros are equals
    bits ^= (bits >> 31) & 0x7FFFFFFF  # negative floats: more magnitude is less
    keys = bits.to(torch.int64)
    keys <<= 32
    keys += torch.arange(scores.shape[-1] - 1, -1, -1, device=scores.device)
    return keys


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Returns the log-probabilities of all tokens, [A, V] float32, for logits [A, V] float32:

        log_softmax(x)[a, i] = x[a, i] - m - log(sum_j exp(x[a, j] - m)),   m = max_j x[a, j]

    New memory, so give it a bounded number of rows at a time. -inf where the logit is -inf; a row with NaN or
    +inf, or with nothing above -inf, becomes NaN in part or whole.

    torch adds up one row at a time, in the same order whatever A and the number of threads are: a row's
    result is that of the row alone, bit for bit. Two reads and one write of the logits; 0.09 ms for a row of
    152,000 on one core, of several rows at a time, where torch.logsumexp (which has a temporary as well)
    takes 0.22."""
    return torch.log_softmax(logits, -1)


def token_ranks(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns where given tokens stand in ranking(), without sorting: scores [A, V] float32, tokens [A, K]
    int64 -> [A, K] int64.

        rank(x, t) = 1 + #{ i : x_i > x_t } + #{ i < t : x_i = x_t }

    Counts for one column of tokens after another, since K is small. Temporaries are bools, [A, V]: give it a
    bounded number of rows at a time. A token whose score is NaN has rank 1. On a CPU numpy counts row by row,
    in a tenth of torch's time.
    """
    if scores.device.type == "cpu":
        counts = [
            [1 + np.count_nonzero(row > row[t]) + np.count_nonzero(row[:t] == row[t]) for t in chosen]
            for row, chosen in zip(scores.numpy(), tokens.tolist(), strict=True)
        ]
        return torch.tensor(counts, dtype=torch.int64).view(tokens.shape)
    ids = torch.arange(scores.shape[1], device=scores.device)
    ranks = torch.empty_like(tokens)
    for column in range(tokens.shape[1]):
        token = tokens[:, column, None]
        score = scores.gather(1, token)
        before = (scores == score) & (ids < token)
        ranks[:, column] = (scores > score).count_nonzero(-1) + before.count_nonzero(-1) + 1
    return ranks
