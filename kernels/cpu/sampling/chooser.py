"""From logits to tokens: temperature, filters and the draw, of rows with parameters of their own.

    w_i = exp((x_i - max x) / T)                        kernels.ops.logits.temperature
    the k highest x, then the shortest beginning of     kernels.ops.sampling.top_k, kernels.ops.sampling.top_p
    their ranking that has top_p of the weight, then
    those with w_i >= min_p * max w,                    kernels.ops.sampling.min_p
    those whose surprise is close to the expected one   kernels.ops.sampling.typical_p
    the first id with w_0 + ... + w_i > u * sum(w)      kernels.ops.sampling.inverse_cdf,
    kernels.ops.sampling.philox

T = 0: the first of the largest x, kernels.ops.sampling.argmax. logits [A, V] float32 -> [A] int64; they stay
as they are.

With llvmlite, on a CPU: one function for a row, whatever its parameters (kernels.cpu.sampling.choose). It
reads the row once, and without top_k once more for the sum of all weights and once for the part that filters
leave. The tokens are those of the operations above. Sums are taken in vectors, in another order; where the
last bits of one could matter, the row is left to torch: UNKNOWN. exp() may differ in the last bit.

Milliseconds of one core for 32 rows of 152,000 logits that fall like a power of the rank, and by torch:
greedy 1.1 (5.4), a temperature 4.1 (18.6), with top_p 0.9 6.3 (57), with top_k 50 1.5 (16.3). Of logits that
are all about the same, top_p 0.9 takes 8.5.
"""

from array import array
from dataclasses import dataclass

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.records import ChooseRecord
from kernels.ops.logits.temperature import temperature_weights
from kernels.ops.sampling.argmax import argmax
from kernels.ops.sampling.inverse_cdf import inverse_cdf
from kernels.ops.sampling.min_p import min_p
from kernels.ops.sampling.philox import philox4x32, uniform53
from kernels.ops.sampling.philox_constants import MASK
from kernels.ops.sampling.top_k import top_k
from kernels.ops.sampling.top_p import top_mass
from kernels.ops.sampling.typical_p import typical_p

LINE = 64  # bytes of a cache line
UNKNOWN = -2
"""Instead of a token: torch is to choose it."""


@dataclass(frozen=True)
class ChoiceParams:
    """What rows are chosen by: tables that the rows of a step are looked up in. They stay where they are."""

    temperature: torch.Tensor  # [N] float64; 0: greedy
    top_k: torch.Tensor  # [N] int64; 0: all; below V
    top_p: torch.Tensor  # [N] float64; 1: all
    min_p: torch.Tensor  # [N] float64; 0: all
    typical_p: torch.Tensor  # [N] float64; 1: all
    keys: torch.Tensor  # [N, 2] int64: words of the seed, the low one first
    indexes: torch.Tensor  # [N] int64: sequence index
    positions: torch.Tensor  # [N] int64: output tokens that the row has


def choose_tokens_reference(logits: torch.Tensor, rows: list[int], params: ChoiceParams) -> torch.Tensor:
    """Row by row, by the operations above."""
    return torch.cat([_choose_one(logits[a : a + 1], row, params) for a, row in enumerate(rows)])


def _choose_one(logits: torch.Tensor, row: int, params: ChoiceParams) -> torch.Tensor:
    """[1, V] -> [1]."""
    only = slice(row, row + 1)
    if params.temperature[row] == 0:
        return argmax(logits)
    scores, k = logits, int(params.top_k[row])
    if k > 0:
        ids, scores = top_k(logits, params.top_k[only], k)
    weights = temperature_weights(scores, logits.amax(-1), params.temperature[only])
    if params.top_p[row] < 1:
        weights = top_mass(scores, weights, params.top_p[only])
    weights = min_p(weights, params.min_p[only])
    if params.typical_p[row] < 1:
        weights = typical_p(weights, params.typical_p[only])
    counter = torch.tensor([[int(params.indexes[row]), int(params.positions[row]), 0, 0]])
    index = inverse_cdf(weights, uniform53(philox4x32(counter, params.keys[only] & MASK)))
    return torch.where(index >= 0, ids[0, index], index) if k > 0 else index


def record_of(params: ChoiceParams, vocab_size: int) -> ChooseRecord:
    """Returns the record of some tables, which must stay in memory, without logits and tokens."""
    return ChooseRecord(
        vocab_size=vocab_size,
        positions=params.positions.data_ptr(),
        temperature=params.temperature.data_ptr(),
        top_k=params.top_k.data_ptr(),
        top_p=params.top_p.data_ptr(),
        min_p=params.min_p.data_ptr(),
        typical_p=params.typical_p.data_ptr(),
        keys=params.keys.data_ptr(),
        indexes=params.indexes.data_ptr(),
    )


class TokenChooser:
    """The compiled function, with threads, scratch memory and its record.

    A call does little besides calling: after a model has read its weights, no cache holds what Python and
    torch need, and all they do takes ten times as long as when it is repeated.
    """

    def __init__(self, kernels: SamplingKernels, params: ChoiceParams, vocab_size: int) -> None:
        self._kernels, self._vocab_size = kernels, vocab_size
        self._params = params  # keeps in memory what the record points to
        self._record = record_of(params, vocab_size)
        # Pages are taken when they are first written.
        size = -(-kernels.scratch_bytes(vocab_size) // LINE) * LINE
        self._scratch = torch.empty(kernels.threads.count, size, dtype=torch.uint8)
        self._scratches = [line.data_ptr() for line in self._scratch]

    def choose(self, logits: torch.Tensor, rows: list[int]) -> "array[int]":
        """[A, V] float32, contiguous -> [A] int64: tokens, -1 where a row has none, UNKNOWN."""
        count = len(rows)
        assert logits.is_contiguous() and logits.dtype == torch.float32
        assert logits.shape == (count, self._vocab_size)
        tokens = array("q", rows)
        self._record.logits = logits.data_ptr()
        self._record.tokens, _ = tokens.buffer_info()
        self._kernels.threads.run(
            self._kernels.choose_rows, self._record, count, count * self._vocab_size, self._scratches
        )
        return tokens
