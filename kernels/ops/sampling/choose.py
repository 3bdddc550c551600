"""From logits to tokens: temperature, filters and the draw, of rows with parameters of their own.

    w_i = exp((x_i - max x) / T)                     kernels.ops.logits.temperature
    the k highest x, then FILTERS in their order     kernels.ops.sampling.filters
    the first id with w_0 + ... + w_i > u * sum(w)   kernels.ops.sampling.inverse_cdf; u: philox

T = 0: the first of the largest x, kernels.ops.sampling.argmax. This is the reference of
kernels.cpu.sampling.choose and of kernels.triton.sampling, and what a CPU runs without compiled functions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops.logits.temperature import temperature_weights
from kernels.ops.sampling.argmax import argmax
from kernels.ops.sampling.columns import NEUTRAL, SamplingColumns
from kernels.ops.sampling.filters import min_p, top_k, top_mass, typical_p
from kernels.ops.sampling.inverse_cdf import inverse_cdf
from kernels.ops.sampling.philox import philox4x32, uniform53
from kernels.ops.sampling.philox_constants import MASK

_Rows = npt.NDArray[np.int64]


class Filter(NamedTuple):
    """Zeroes weights by a column; rows in which it is neutral are left alone."""

    column: str
    filter_weights: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """scores [U, W] float32, weights [U, W] float64, parameter [U] float64 -> weights [U, W]."""


FILTERS = (
    Filter("top_p", top_mass),
    Filter("min_p", lambda scores, weights, share: min_p(weights, share)),
    Filter("typical_p", lambda scores, weights, share: typical_p(weights, share)),
)
"""In the order in which they apply, behind top_k."""


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
