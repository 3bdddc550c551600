"""Candidates of a draw: which tokens become some, and which of them filters leave; Python runs the functions
here, beside lists."""

import math
import random

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.sampling.candidates import (  # noqa: E402
    collect,
    keep_best,
    note,
    pick,
    total_of,
)
from kernels.cpu.sampling.scratch import (  # noqa: E402
    FOUND,
    begin_row,
    logit_of,
    logits_at,
    scratch_bytes,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import CHUNK  # noqa: E402
from kernels.ops.sampling.columns import UNKNOWN  # noqa: E402
from tests.kernels.references.sampling import top_p_reference
from tests.kernels.sampling_inputs import tied_logits  # noqa: E402


class Row:
    """A row of logits, and the scratch memory of a thread."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits.float().contiguous()
        self.memory = np.zeros(scratch_bytes(len(logits)) // 8 + 8, np.int64)
        self.at = self.memory.ctypes.data
        begin_row(self.logits.data_ptr(), len(logits), 0, self.at)
        _, self.x, self.ids, self.weights, self.free = scratch_places(self.at)

    def view(self, address: int, dtype: type[np.generic], count: int) -> np.ndarray:
        offset = address - self.at
        return self.memory.view(np.uint8)[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

    def fill(self, x: list[float], weights: list[float]) -> None:
        """Candidates with the ids 10, 11, ..."""
        self.view(self.x, np.float32, len(x))[:] = x
        self.view(self.ids, np.int32, len(x))[:] = range(10, 10 + len(x))
        self.view(self.weights, np.float64, len(x))[:] = weights

    def candidates(self, n: int) -> list[tuple[int, float, float]]:
        """(id, score, weight)."""
        parts = (
            self.view(self.ids, np.int32, n),
            self.view(self.x, np.float32, n),
            self.view(self.weights, np.float64, n),
        )
        return list(zip(*(part.tolist() for part in parts), strict=True))


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 130])
def test_places_in_scratch_memory_do_not_overlap(vocab_size: int) -> None:
    """Each as large as a vocabulary of whole chunks needs; all within what a thread has."""
    row, padded = Row(torch.zeros(vocab_size)), -(-vocab_size // CHUNK) * CHUNK
    before, x, ids, weights, free = scratch_places(row.at)
    places = [before, x, ids, weights, free]
    sizes = [8 * (padded // CHUNK + 1), 4 * padded, 4 * padded, 8 * padded, 16 * (padded + 8)]
    ends = [place + size for place, size in zip(places, sizes, strict=True)]
    assert ends[:-1] == places[1:] and ends[-1] - row.at == scratch_bytes(vocab_size)
    assert row.at + FOUND + 4 * (padded // CHUNK) == before


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 130])
def test_the_last_chunk_is_padded_with_nothing(vocab_size: int) -> None:
    row = Row(torch.arange(vocab_size) + 1.0)
    for chunk in range(-(-vocab_size // CHUNK)):
        found = np.frombuffer(
            (np.ctypeslib.ctypes.c_float * CHUNK).from_address(logits_at(chunk, row.at)), np.float32
        )
        own = row.logits[CHUNK * chunk : CHUNK * (chunk + 1)].tolist()
        assert found.tolist() == own + [-math.inf] * (CHUNK - len(own))
    assert [logit_of(token, row.at) for token in (0, vocab_size - 1)] == [1.0, vocab_size]


@pytest.mark.parametrize("bits", [0, 1, 1 << 63, (1 << 64) - 1, 0x8000000000000001, 0x5555555555555555])
def test_each_bit_is_a_candidate(bits: int) -> None:
    """In ascending order, behind those that are there."""
    row = Row(torch.arange(64.0))
    n = note(bits, row.logits.data_ptr(), 640, 0, row.x, row.ids)
    expected = [i for i in range(64) if bits >> i & 1]
    assert n == len(expected)
    assert [(token, score) for token, score, _ in row.candidates(n)] == [(640 + i, i) for i in expected]


@pytest.mark.parametrize("limit", [-5.0, 0.0, 0.5, 1.0, 9.0])
def test_tokens_that_reach_a_limit(limit: float) -> None:
    """Equal to it is enough; of all chunks, also of the last one, which is not whole."""
    logits = tied_logits(1, 150)[0]
    row = Row(logits)
    found = row.candidates(collect(limit, row.at))
    assert [token for token, _, _ in found] == (logits >= limit).nonzero().flatten().tolist()


def random_candidates(n: int, seed: int) -> tuple[list[float], list[float]]:
    numbers = random.Random(seed)
    return [float(numbers.randrange(5)) for _ in range(n)], [float(numbers.randrange(1, 9)) for _ in range(n)]


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.5, 0.99, 1.0])
def test_the_best_stay_in_their_order(n: int, share: float) -> None:
    """Of equals the first ones: as top_p keeps them. Whole weights, so that sums are exact."""
    x, weights = random_candidates(n, n)
    row = Row(torch.zeros(64))
    row.fill(x, weights)
    target = share * sum(weights)
    kept = row.candidates(keep_best(n, target, 0.0, row.at))
    scores, masses = torch.tensor([x]), torch.tensor([weights], dtype=torch.float64)
    expected = top_p_reference(scores, masses, torch.tensor([share], dtype=torch.float64))[0]
    assert kept == [(10 + i, x[i], weights[i]) for i in range(n) if expected[i] > 0]


def test_what_is_not_certain_is_not_kept() -> None:
    row = Row(torch.zeros(64))
    row.fill([3.0, 2.0, 1.0], [1.0, 1.0, 1.0])
    assert keep_best(3, 2.0, 1e-9, row.at) == UNKNOWN
    assert keep_best(3, 4.0, 0.0, row.at) == UNKNOWN, "all together are not enough"


def test_sums_and_picks() -> None:
    """Of weights that are enough; picked is the first at which the sum exceeds the target."""
    row = Row(torch.zeros(64))
    weights = [0.5, 0.05, 2.0, 0.25, 0.01]
    row.fill([0.0] * 5, weights)
    assert total_of(row.weights, 5, 0.0) == sum(weights)
    assert total_of(row.weights, 5, 0.25) == 2.75 and total_of(row.weights, 0, 0.0) == 0
    for target, token in (
        (0.0, 10),
        (0.49, 10),
        (0.5, 12),
        (2.49, 12),
        (2.5, 13),
        (2.7, 13),
        (2.75, UNKNOWN),
    ):
        assert pick(row.ids, row.weights, 5, 0.25, target) == token
    assert pick(row.ids, row.weights, 0, 0.0, 0.0) == UNKNOWN
