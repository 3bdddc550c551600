"""Penalties of rows whose histories lie in tables: the compiled functions against the formula, bit for bit,
and what becomes of the tables."""

import math

import numpy as np
import pytest
import torch

from kernels.cpu.sampling.api import Histories, sampling_kernels
from kernels.ops.sampling.logits_processors import penalties_reference
from tests.kernels.sampling_inputs import tied_logits

KERNELS = sampling_kernels(1)
pytestmark = pytest.mark.skipif(KERNELS is None, reason="llvmlite is not installed")
SLOTS, ROOM, VOCAB = 5, 40, 97
STRENGTHS = [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, -0.4, 1.1), (1.0, 0.9, -2.0), (1.1, 0.1, 0.1)]


def users_of(rows: list[int], slots: list[int], lengths: list[int]) -> Histories:
    """Histories with repeats, of which the first half is a prompt's: it is not counted."""
    rng = np.random.default_rng(sum(lengths))
    history = torch.from_numpy(rng.integers(0, VOCAB, (SLOTS, ROOM)))
    counts = torch.zeros(SLOTS, VOCAB, dtype=torch.int32)
    for slot, length in zip(slots, lengths, strict=True):
        counts[slot] = torch.bincount(history[slot, length // 2 : length], minlength=VOCAB).int()
    return Histories(rows, slots, lengths, history, counts, torch.tensor(STRENGTHS))


def expected(logits: torch.Tensor, users: Histories) -> torch.Tensor:
    for row, slot, length in zip(users.rows, users.slots, users.lengths, strict=True):
        history = users.history[slot : slot + 1, :length]
        counts = users.counts[slot : slot + 1].gather(1, history)
        strengths = users.strengths[slot : slot + 1]
        logits = penalties_reference(logits, torch.tensor([row]), history, counts, strengths)
    return logits


CASES = [
    ([], [], []),
    ([2], [4], [ROOM]),
    ([0], [0], [0]),
    ([3, 1], [2, 3], [1, 39]),
    ([0, 1, 2, 3], [3, 2, 1, 0], [7, 30, 0, 12]),
]


@pytest.mark.parametrize(("rows", "slots", "lengths"), CASES)
def test_equals_the_formula(rows: list[int], slots: list[int], lengths: list[int]) -> None:
    """A token of a history is penalized once, however often it is there. Called twice, nothing is left of
    the first call but what it wrote."""
    assert KERNELS is not None
    users = users_of(rows, slots, lengths)
    for seed in (1, 2):
        logits = tied_logits(4, VOCAB, seed) * 1.7
        wanted = expected(logits, users)
        KERNELS.penalize(logits, users)
        assert torch.equal(logits, wanted)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.cpu.runtime.row_threads.WORTH_IT", 0)
    kernels = sampling_kernels(3)
    assert kernels is not None
    users, logits = users_of(*CASES[-1]), tied_logits(4, VOCAB)
    wanted = expected(logits, users)
    kernels.penalize(logits, users)
    assert torch.equal(logits, wanted)


def test_masked_and_broken_logits_stay_what_they_are() -> None:
    assert KERNELS is not None
    users = users_of([0], [2], [ROOM])
    token = int(users.history[2, 0])
    for value in (-math.inf, math.inf, math.nan):
        logits = torch.zeros(1, VOCAB)
        logits[0, token] = value
        KERNELS.penalize(logits, users)
        torch.testing.assert_close(logits[0, token], torch.tensor(value), equal_nan=True)


def test_tokens_are_noted_behind_their_histories() -> None:
    """And counted; of a row that got none, 0 is. Other slots and what lies further behind stay."""
    assert KERNELS is not None
    users = users_of([3, 0, 2], [1, 4, 2], [5, 0, ROOM - 1])
    history, counts = users.history.clone(), users.counts.clone()
    KERNELS.append(torch.tensor([VOCAB - 1, 50, -2, 8]), users)
    for slot, place, token in ((1, 5, 8), (4, 0, VOCAB - 1), (2, ROOM - 1, 0)):
        history[slot, place] = token
        counts[slot, token] += 1
    assert torch.equal(users.history, history) and torch.equal(users.counts, counts)


def test_nothing_to_note() -> None:
    assert KERNELS is not None
    users = users_of([], [], [])
    before = users.history.clone()
    KERNELS.append(torch.tensor([1, 2]), users)
    assert torch.equal(users.history, before) and not users.counts.any()


def test_what_is_noted_counts_in_the_next_step() -> None:
    """A token after the other, as a row generates them: the same as all of them at once."""
    assert KERNELS is not None
    users = users_of([0], [3], [0])
    users.history.zero_()
    for step, token in enumerate([5, 9, 5, 5, 96]):
        KERNELS.append(torch.tensor([token]), Histories([0], [3], [step], *vars_of(users)))
    assert users.history[3, :5].tolist() == [5, 9, 5, 5, 96]
    assert users.counts[3].nonzero().flatten().tolist() == [5, 9, 96] and users.counts[3, 5] == 3
    logits = torch.full((1, VOCAB), 4.0)
    KERNELS.penalize(logits, Histories([0], [3], [5], *vars_of(users)))
    frequency, presence = 0.9, -2.0
    for token, count in ((5, 3), (9, 1), (96, 1), (7, 0)):
        by_hand = 4.0 - frequency * count - presence * (count > 0)
        assert logits[0, token].item() == pytest.approx(by_hand, abs=1e-6)


def vars_of(users: Histories) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return users.history, users.counts, users.strengths
