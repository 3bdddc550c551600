"""Formulas of the sampler, row by row, to which tests compare kernels.ops.sampling."""

import math
from itertools import accumulate

import torch

from kernels.ops.sampling.logprobs import ranking_reference
from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1
from kernels.ops.sampling.token_masks import ANY, Prohibitions


def temperature_weights_reference(
    scores: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """The formula, one score at a time."""
    rows = zip(scores.tolist(), largest.tolist(), temperature.tolist(), strict=True)
    weights = [[math.exp((x - m) / t) for x in row] for row, m, t in rows]
    return torch.tensor(weights, dtype=torch.float64, device=scores.device)


def top_k_reference(logits: torch.Tensor, k: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula, row by row."""
    ids = ranking_reference(logits, n)
    masked = torch.full_like(logits, -torch.inf)
    for a, count in enumerate(k.tolist()):
        masked[a, ids[a, :count]] = logits[a, ids[a, :count]]
        ids[a] = ids[a].sort().values
    return ids, masked.gather(1, ids)


def min_p_reference(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The formula, one weight at a time."""
    rows = zip(weights.tolist(), share.tolist(), strict=True)
    kept = [[w if w >= s * max(row) else 0.0 for w in row] for row, s in rows]
    return torch.tensor(kept, dtype=torch.float64, device=weights.device)


def typical_p_reference(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The formula on probabilities, as in the paper."""
    distances = []
    for row in weights.tolist():
        p = [w / sum(row) for w in row]
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        distances.append([abs(-math.log(x) - entropy) if x > 0 else math.inf for x in p])
    return top_p_reference(-torch.tensor(distances, dtype=torch.float32), weights, share)


def forbid_tokens_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, active: torch.Tensor
) -> torch.Tensor:
    """The formula, row by row. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        masked = logits[a].clone()
        masked[token_ids[u][active[u]]] = -torch.inf
        if masked.max() > -torch.inf:
            result[a] = masked
    return result


def prohibit_reference(
    logits: torch.Tensor, slots: list[int], positions: list[int], state: Prohibitions
) -> torch.Tensor:
    """The formula, row by row. Returns new logits."""
    result = logits.clone()
    for a, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        if slot < 0:
            continue
        num_words, longest, num_stops, min_tokens, num_longer = state.numbers[slot].tolist()
        said = state.outputs[slot, :position].tolist()[::-1]
        prefixes = state.prefix[slot, :num_longer, :longest].tolist()
        prefixes += [[]] * (num_words - num_longer)
        words = zip(state.last[slot, :num_words].tolist(), prefixes, strict=True)
        bad = [
            last
            for last, prefix in words
            if all(want == ANY or said[n : n + 1] == [want] for n, want in enumerate(prefix))
        ]
        stops = state.stop_ids[slot, :num_stops].tolist() if position < min_tokens else []
        for forbidden in (bad, stops):
            masked = result[a].clone()
            masked[forbidden] = torch.where(masked[forbidden].isnan(), torch.nan, -torch.inf)
            if (masked > -torch.inf).any():
                result[a] = masked
    return result


def philox4x32_reference(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The formula, one block in Python integers. All words in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def uniform53_reference(words: tuple[int, int, int, int]) -> float:
    """The uniform number of one block: the top 53 bits of the 64-bit number x0 x1, over 2^53."""
    return ((words[0] << 32 | words[1]) >> 11) / (1 << 53)


def argmax_reference(logits: torch.Tensor) -> torch.Tensor:
    """The formula: a loop over ids."""
    tokens = []
    for row in logits.tolist():
        best = -1
        for token, logit in enumerate(row):
            if math.isnan(logit) or logit == math.inf:
                best = -1
                break
            if logit > (row[best] if best >= 0 else -math.inf):
                best = token
        tokens.append(best)
    return torch.tensor(tokens, device=logits.device)


def inverse_cdf_reference(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The formula: a linear search from the left."""
    indexes = []
    for row, x in zip(weights.tolist(), u.tolist(), strict=True):
        cdf = list(accumulate(row))
        candidates = [i for i, mass in enumerate(cdf) if mass > x * cdf[-1] or 0 < mass == cdf[-1]]
        indexes.append(candidates[0] if candidates else -1)
    return torch.tensor(indexes, device=weights.device)


def penalties_reference(
    logits: torch.Tensor,
    batch_index: torch.Tensor,
    history: torch.Tensor,
    counts: torch.Tensor,
    strengths: torch.Tensor,
) -> torch.Tensor:
    """The formula, one token at a time. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        repetition, frequency, presence = strengths[u]
        for token, count in zip(history[u].tolist(), counts[u], strict=True):
            x = logits[a, token]
            x = x / repetition if x > 0 else x * repetition
            result[a, token] = x - frequency * count - presence * (count > 0)
    return result


def add_logit_bias_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The formula, one token at a time. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        for n, token in enumerate(token_ids[u].tolist()):
            result[a, token] = logits[a, token] + bias[u, n]
    return result


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


def log_softmax_reference(logits: torch.Tensor) -> torch.Tensor:
    """The formula in float64, with exact sums."""
    rows = []
    for row in logits.tolist():
        largest = max(row)
        total = math.fsum(math.exp(x - largest) for x in row)
        rows.append([x - largest - math.log(total) for x in row])
    return torch.tensor(rows, dtype=torch.float64, device=logits.device)


def token_ranks_reference(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The formula: counts, one score at a time."""
    ranks = [
        [1 + sum(x > row[t] or (x == row[t] and i < t) for i, x in enumerate(row)) for t in chosen]
        for row, chosen in zip(scores.tolist(), tokens.tolist(), strict=True)
    ]
    return torch.tensor(ranks, device=tokens.device).view(tokens.shape)


def top_p_reference(scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The formula: adds weights up until the target is reached."""
    result = torch.zeros_like(weights)
    order = ranking_reference(scores, scores.shape[-1]).tolist()
    for a, row in enumerate(weights.tolist()):
        target = share[a].item() * list(accumulate(row))[-1]  # sum() may compensate, from Python 3.12 on
        mass = 0.0
        for token in order[a]:
            result[a, token] = row[token]
            mass += row[token]
            if mass >= target:
                break
    return result
