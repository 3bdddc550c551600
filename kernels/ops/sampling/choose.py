"""From logits to tokens: temperature, filters and the draw, of rows with parameters of their own.

    w_i = exp((x_i - max x) / T), the k highest x, then FILTERS in their order   kernels.ops.sampling.filters
    the first id with w_0 + ... + w_i > u * sum(w)                               inverse_cdf; u: uniforms_of

T = 0: the first of the largest x, argmax. This is the reference of
kernels.cpu.sampling.choose and of kernels.triton.sampling, and what a CPU runs without compiled functions.

u comes from Philox4x32-10, a counter-based generator: the same key and counter give the same 128 bits,
anywhere. A round maps the counter (c0, c1, c2, c3) under the key (k0, k1), all words of 32 bits, to

    (hi(M1 c2) ^ c1 ^ k0,  lo(M1 c2),  hi(M0 c0) ^ c3 ^ k1,  lo(M0 c0))

where hi and lo are the halves of the 64-bit product; between rounds k0 += W0 and k1 += W1 (mod 2^32).
Ten rounds. Nothing is carried from one number to the next, so a generator has no state to lose.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the known
answers of its library, Random123, are in the test.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops.sampling.columns import NEUTRAL, SamplingColumns
from kernels.ops.sampling.filters import FILTERS, temperature_weights, top_k
from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1


def philox4x32(counters: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Blocks for N counters: [N, 4] int64 and keys [N, 2] int64, words in [0, 2^32) -> [N, 4] int64.

    Torch has no arithmetic on unsigned words, so words live in int64. A product wraps around at 64
    bits and may come out negative: its bits are right, and the mask drops the sign that the shift
    brings in. The two multiplications of a round are one operation on [N, 2], as launches and not
    arithmetic are what this costs (about 60 small operations, 60 us for any N up to a few hundred).
    """
    device = counters.device
    multipliers = torch.tensor([M0, M1], device=device)
    increments = torch.tensor([W0, W1], device=device)
    even, odd, key = counters[:, 0::2], counters[:, 1::2], keys
    for _ in range(ROUNDS):
        product = (even * multipliers).flip(-1)
        even = ((product >> 32) ^ odd ^ key) & MASK
        odd = product & MASK
        key = (key + increments) & MASK
    return torch.stack((even, odd), dim=-1).flatten(1)


def uniform53(words: torch.Tensor) -> torch.Tensor:
    """The uniform numbers of blocks [N, 4] int64 -> [N] float64, multiples of 2^-53 in [0, 1)."""
    return ((words[:, 0] << 21) | (words[:, 1] >> 11)).to(torch.float64) * 2.0**-53


_Rows = npt.NDArray[np.int64]


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Returns the id of the largest logit, the lowest among equals; -1 where it is not finite: NaN or +inf
    somewhere (the model broke down), or -inf everywhere (nothing may be chosen).

    logits [A, V] float32 -> [A] int64, in one read. torch.max gives the first of equals, and NaN if there is
    one.
    """
    largest, tokens = logits.max(-1)
    return torch.where(largest.isfinite(), tokens, -1)


def inverse_cdf(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Returns one draw from each row of weights: the first index whose cumulative weight exceeds u times the
    whole. weights [A, W] float64, u [A] float64 in [0, 1) -> [A] int64; -1 where no weight is positive or one
    is NaN.

        c_i = w_0 + ... + w_i  (float64, added from left to right),   result = min { i : c_i > u * c_{W-1} }

    Index i is drawn only if c_{i-1} <= u c_{W-1} < c_i, so its weight is not zero. As u is at most 1 - 2^-53,
    the product stays below c_{W-1} after rounding too, unless the sum is subnormal; the last index with a
    positive weight is the limit in any case. This needs sums that never decrease: torch adds from left to
    right on the CPU, as numpy does. Devices with a parallel scan have a variant of their own:
    kernels.triton.sampling.sample.
    """
    cdf = weights.cumsum(-1)
    total = cdf[:, -1:].contiguous()
    drawn = torch.searchsorted(cdf, u[:, None] * total, right=True)
    last = torch.searchsorted(cdf, total)
    return torch.where(total > 0, torch.minimum(drawn, last), -1)[:, 0]


class Candidates(NamedTuple):
    """W candidates of each of A rows, in ascending order of their ids."""

    ids: torch.Tensor | None  # [A, W] int64; None: the vocabulary, W = V
    weights: torch.Tensor  # [A, W] float64: probabilities up to a factor; 0: filtered out


@torch.inference_mode()
def choose_tokens(logits: torch.Tensor, rows: Sequence[int], columns: SamplingColumns) -> torch.Tensor:
    """Returns tokens [A] int64 for logits [A, V] float32 on a CPU; -1 where the largest is not finite."""
    index = np.array(rows, np.int64)
    drawing = columns["temperature"][index] > 0
    kinds = drawing + (drawing & (columns["top_k"][index] > 0)).astype(np.int64)  # 0: greedy
    groups = np.unique(kinds)
    if len(groups) <= 1:
        return _choose(logits, index, columns, not groups.any())
    tokens = torch.empty(len(index), dtype=torch.int64)
    for kind in groups:
        members = np.flatnonzero(kinds == kind)
        where = torch.from_numpy(members)
        tokens[where] = _choose(logits[where], index[members], columns, kind == 0)
    return tokens


def _choose(logits: torch.Tensor, rows: _Rows, columns: SamplingColumns, greedy: bool) -> torch.Tensor:
    """Returns tokens [A] of rows of one kind. logits: [A, V]."""
    if greedy:
        return argmax(logits)
    ids, weights = candidates_of(logits, rows, columns)
    index = inverse_cdf(weights, uniforms_of(rows, columns))
    if ids is None:
        return index
    return torch.where(index >= 0, ids.gather(1, index.clamp(min=0)[:, None])[:, 0], index)


def candidates_of(logits: torch.Tensor, rows: Sequence[int] | _Rows, columns: SamplingColumns) -> Candidates:
    """Returns what the tokens of rows [A] are drawn from, of which all have a top_k or none has.

    logits: [A, V] float32."""
    limits = columns["top_k"][rows]
    widest, ids, scores = int(limits.max()), None, logits
    if widest:
        ids, scores = top_k(logits, torch.from_numpy(limits), widest)
    temperature = torch.from_numpy(columns["temperature"][rows])
    weights = temperature_weights(scores, logits.amax(-1), temperature)
    for column, filter_weights in FILTERS:
        parameter = columns[column][rows]
        users, parameters = np.flatnonzero(parameter != NEUTRAL[column]), torch.from_numpy(parameter)
        if len(users) == len(parameter):
            weights = filter_weights(scores, weights, parameters)
        elif len(users):
            index = torch.from_numpy(users)
            weights[index] = filter_weights(scores[index], weights[index], parameters[index])
    return Candidates(ids, weights)


def uniforms_of(rows: Sequence[int] | _Rows, columns: SamplingColumns) -> torch.Tensor:
    """Returns the number of each row [A] at its position, float64 in [0, 1): a function of (seed, sequence
    index, position) and nothing else."""
    seeds = torch.from_numpy(columns["seed"][rows].view(np.int64))
    counters = torch.zeros(len(rows), 4, dtype=torch.int64)
    counters[:, 0] = torch.from_numpy(columns["sequence_index"][rows])
    counters[:, 1] = torch.from_numpy(columns["position"][rows])
    return uniform53(philox4x32(counters, torch.stack((seeds, seeds >> 32), -1) & MASK))
