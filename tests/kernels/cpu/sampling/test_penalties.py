"""Penalties of rows by their histories: the compiled functions against the formula, bit for bit, and what
becomes of the histories."""

import math

import numpy as np
import pytest
import torch

from kernels.cpu.sampling.api import sampling_kernels
from kernels.ops.sampling.logits_processors import PenaltyHistory
from kernels.sampling_ops import SamplingOps
from tests.kernels.references.sampling import penalties_reference
from tests.kernels.sampling_inputs import tied_logits

KERNELS = sampling_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="llvmlite is not installed")
ROOM, VOCAB = 40, 97
STRENGTHS = [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, -0.4, 1.1), (1.0, 0.9, -2.0), (1.1, 0.1, 0.1)]


def histories_of(kinds: list[int], lengths: list[int]) -> list[PenaltyHistory]:
    """Histories with repeats, of which the first half is a prompt's: it is not counted. kinds: of
    STRENGTHS."""
    rng = np.random.default_rng(sum(lengths))
    histories = []
    for kind, length in zip(kinds, lengths, strict=True):
        tokens = rng.integers(0, VOCAB, length)
        counts = np.bincount(tokens[length // 2 :], minlength=VOCAB).astype(np.int32)
        histories.append(PenaltyHistory(STRENGTHS[kind], tokens.tolist(), counts))
    return histories


def expected(logits: torch.Tensor, rows: list[int], histories: list[PenaltyHistory]) -> torch.Tensor:
    for row, history in zip(rows, histories, strict=True):
        tokens = torch.tensor([list(history.tokens)], dtype=torch.int64)
        counts, strengths = torch.from_numpy(history.counts)[tokens], torch.tensor([list(history.strengths)])
        logits = penalties_reference(logits, torch.tensor([row]), tokens, counts, strengths)
    return logits


CASES = [
    ([], [], []),
    ([2], [4], [ROOM]),
    ([0], [0], [0]),
    ([3, 1], [2, 3], [1, 39]),
    ([0, 1, 2, 3], [3, 2, 1, 0], [7, 30, 0, 12]),
]


@pytest.mark.parametrize("ops", [KERNELS, SamplingOps()], ids=["compiled", "torch"])
@pytest.mark.parametrize(("rows", "kinds", "lengths"), CASES)
def test_equals_the_formula(ops: SamplingOps, rows: list[int], kinds: list[int], lengths: list[int]) -> None:
    """A token of a history is penalized once, however often it is there. Called twice, nothing is left of
    the first call but what it wrote."""
    histories = histories_of(kinds, lengths)
    for seed in (1, 2):
        logits = tied_logits(4, VOCAB, seed) * 1.7
        wanted = expected(logits, rows, histories)
        ops.penalize(logits, rows, histories)
        assert torch.equal(logits, wanted)


def test_threads_change_nothing(threads: int) -> None:
    assert KERNELS is not None
    rows, logits = CASES[-1][0], tied_logits(4, VOCAB)
    histories = histories_of(*CASES[-1][1:])
    wanted = expected(logits, rows, histories)
    KERNELS.penalize(logits, rows, histories)
    assert torch.equal(logits, wanted)


def test_masked_and_broken_logits_stay_what_they_are() -> None:
    assert KERNELS is not None
    (history,) = histories_of([2], [ROOM])
    token = history.tokens[0]
    for value in (-math.inf, math.inf, math.nan):
        logits = torch.zeros(1, VOCAB)
        logits[0, token] = value
        KERNELS.penalize(logits, [0], [history])
        torch.testing.assert_close(logits[0, token], torch.tensor(value), equal_nan=True)


def test_what_is_appended_counts_in_the_next_step() -> None:
    """A token after the other, as a row generates them, far beyond the room of the beginning. A copy grows by
    itself."""
    assert KERNELS is not None
    history = PenaltyHistory(STRENGTHS[3], [], np.zeros(VOCAB, np.int32))
    for token in [5, 9, 5, 5, 96]:
        history.append(token)
    copy = history.copy()
    for _ in range(1000):
        copy.append(7)
    assert history.tokens.tolist() == [5, 9, 5, 5, 96] and len(copy.tokens) == 1005
    assert history.counts.nonzero()[0].tolist() == [5, 9, 96] and history.counts[5] == 3
    logits = torch.full((2, VOCAB), 4.0)
    KERNELS.penalize(logits, [0, 1], [history, copy])
    frequency, presence = 0.9, -2.0
    for row, token, count in ((0, 5, 3), (0, 9, 1), (0, 96, 1), (0, 7, 0), (1, 5, 3), (1, 7, 1000)):
        by_hand = 4.0 - frequency * count - presence * (count > 0)
        assert logits[row, token].item() == pytest.approx(by_hand, abs=1e-3)
