"""Greedy choice as records of a program, against its reference."""

import math

import pytest
import torch

from kernels.ops.sampling.choose import argmax
from tests.kernels.references.sampling import argmax_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

pytest.importorskip("llvmlite")
from kernels.cpu.sampling.argmax import RECORDS, GreedyChoice  # noqa: E402

pytestmark = pytest.mark.cpu_kernels
PIECE = 8192
INF, NAN = math.inf, math.nan


def choose(logits: torch.Tensor, rows: int | None = None, runs: int = 1, slack: int = RECORDS) -> list[int]:
    """By a program of the two records, the last of so many runs."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    choice, program = GreedyChoice(logits), Program(RECORDS, slack)
    for index, (operation, record, grain) in enumerate(choice.operations()):
        program.put(index, operation, 0, record, grain, repeatable=True)
    choice.set_rows(program.records, len(logits) if rows is None else rows)
    for _ in range(runs):
        choice.tokens.fill_(-7)
        TEAM.run(program)
    tokens: list[int] = choice.tokens.tolist()
    return tokens


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("vocab_size", [1, 63, 64, 1031, PIECE, PIECE + 1, 2 * PIECE + 64])
def test_equals_reference(rows: int, vocab_size: int, threads: int) -> None:
    """With equals, zeros of both signs and -inf among them; whole pieces and chunks, and what is left."""
    for logits in (smooth_logits(rows, vocab_size), tied_logits(rows, vocab_size)):
        logits[:, ::3] *= -1
        assert choose(logits) == argmax(logits).tolist()
    assert choose(logits[:2]) == argmax_reference(logits[:2]).tolist()


@pytest.mark.parametrize("vocab_size", [49_152, 50_257, 151_936])
def test_vocabularies_of_models(vocab_size: int, threads: int) -> None:
    """Run after run, with a thread that may be behind and with none that may."""
    logits = tied_logits(3, vocab_size)
    expected = argmax(logits).tolist()
    assert choose(logits, runs=40) == expected
    assert choose(logits, runs=5, slack=0) == expected


def test_the_first_of_equals(threads: int) -> None:
    """Wherever they are: in a chunk, in two chunks, in two pieces, in what is left of the last one."""
    places = [0, 5, 63, 64, 130, PIECE - 1, PIECE, PIECE + 70, 2 * PIECE + 1, 2 * PIECE + 9]
    logits = torch.full((len(places), 2 * PIECE + 10), -3.5)
    for row, place in enumerate(places):
        logits[row, place:] = torch.where(torch.arange(logits.shape[1] - place) % 3 == 0, 2.5, -3.5)
    assert choose(logits) == places


@pytest.mark.parametrize("place", [0, 63, 64, PIECE - 1, PIECE, 2 * PIECE, 2 * PIECE + 9])
def test_broken_rows(place: int, threads: int) -> None:
    """NaN of either sign, +inf, or nothing at all: no token, and their neighbours have theirs."""
    logits = smooth_logits(6, 2 * PIECE + 10)
    expected = argmax(logits).tolist()
    for row, value in ((0, NAN), (2, INF), (3, -NAN)):
        logits[row, place] = value
    logits[4] = -INF
    expected[0] = expected[2] = expected[3] = expected[4] = -1
    assert choose(logits) == expected
    logits[4, place] = -1e30
    assert choose(logits)[4] == place


def test_some_of_the_rows() -> None:
    """The first ones; others keep what they had."""
    logits = smooth_logits(5, 1000)
    assert choose(logits, 2) == [*argmax(logits[:2]).tolist(), -7, -7, -7]
    assert choose(logits, 0) == [-7] * 5
