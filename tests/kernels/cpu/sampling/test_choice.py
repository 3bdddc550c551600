"""The choice of tokens as records of a program, against its reference."""

import math

import pytest
import torch

from kernels.ops.sampling.choose import argmax, choose_tokens
from kernels.ops.sampling.columns import SamplingColumns
from tests.kernels.references.sampling import argmax_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

pytest.importorskip("llvmlite")
from kernels.cpu.sampling.choose import FEW_ROWS, PIECE, RECORDS, Choice  # noqa: E402

pytestmark = pytest.mark.cpu_kernels
INF, NAN = math.inf, math.nan


def choose(
    logits: torch.Tensor,
    rows: int | None = None,
    runs: int = 1,
    slack: int = RECORDS,
    columns: SamplingColumns | None = None,
) -> list[int]:
    """By a program of the records, the last of so many runs. columns: None for greedy rows."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    choice, program = Choice(*logits.shape, TEAM), Program(RECORDS, slack)
    for index, (operation, record) in enumerate(choice.operations()):
        program.put(index, operation, 0, record, 1, repeatable=True)
    numbers = torch.arange(len(logits))
    columns = columns or SamplingColumns(len(logits))
    choice.set_rows(program.records, logits[:rows], columns, numbers.data_ptr())
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


def drawn(rows: int) -> SamplingColumns:
    """Rows of all kinds: greedy, of all tokens, of the best, of a nucleus."""
    columns = SamplingColumns(rows)
    kinds = {"temperature": 0.0}, {"temperature": 0.8}, {"top_k": 9}, {"temperature": 1.5, "top_p": 0.7}
    for row in range(rows):
        columns.set_row(row, **kinds[row % 4], seed=row, position=row)
    return columns


@pytest.mark.parametrize("rows", [1, 5, FEW_ROWS, FEW_ROWS + 1])
def test_rows_that_are_drawn(rows: int, threads: int) -> None:
    """Where threads share the pieces of rows, and where they share rows."""
    logits, columns = smooth_logits(rows, PIECE + 70), drawn(rows)
    expected = choose_tokens(logits, range(rows), columns).tolist()
    assert choose(logits, columns=columns, runs=5) == expected
    assert choose(logits, columns=columns, slack=0) == expected


def test_rows_of_columns() -> None:
    """Tokens of rows in another order, of which some have none."""
    from kernels.cpu.runtime.thread_pool import TEAM, Program

    logits, columns = smooth_logits(3, 100), drawn(9)
    choice, program = Choice(3, 100, TEAM), Program(RECORDS)
    for index, (operation, record) in enumerate(choice.operations()):
        program.put(index, operation, 0, record, 1)
    rows, indexes = torch.tensor([7, 0, 2, 8, 5]), torch.tensor([4, 0, 2])
    choice.set_rows(program.records, logits, columns, rows.data_ptr(), indexes.data_ptr())
    TEAM.run(program)
    assert choice.tokens.tolist() == choose_tokens(logits, [5, 7, 2], columns).tolist()
