"""What the pieces of a step are: each token once, in the order of the step, and its samples behind them."""

from collections.abc import Callable

import numpy as np
import pytest

from worker.cpu.memory_retry import compute_in_pieces, sampled_positions
from worker.step.plan_reader import Measures, Step


def step_of(
    rows: list[tuple[int, int, int]],
    samples: list[tuple[int, int]] | None = None,
    num_logits: list[int] | None = None,
) -> Step:
    """rows: (row, start, count). samples: (row, source)."""
    columns = np.array(rows, np.int64).T.reshape(3, len(rows))
    sampled = np.array(samples or [], np.int64).reshape(-1, 2).T
    counts = columns[2]
    flat = np.concatenate([columns.reshape(-1), sampled.reshape(-1)])
    measures = Measures(int(counts.sum()), int((columns[1] + counts).max()), False)
    logits = None if num_logits is None else np.array(num_logits, np.int64)
    return Step(*columns, *sampled, flat.ctypes.data, measures, logits)


def tokens_of(step: Step) -> list[tuple[int, int]]:
    """(row, position) of each."""
    return [
        (int(row), int(position))
        for row, start, count in zip(step.rows, step.starts, step.counts, strict=True)
        for position in range(start, start + count)
    ]


def limited(most: int, taken: list[Step], error: Exception) -> Callable[[Step], None]:
    """A forward pass of at most so many tokens."""

    def forward(step: Step) -> None:
        if step.measures.num_tokens > most:
            raise error
        taken.append(step)

    return forward


ROWS = [(4, 0, 5), (2, 9, 1), (7, 3, 4)]
OUT_OF_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.mark.parametrize("error", [MemoryError(), OUT_OF_MEMORY], ids=["numpy", "torch"])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_tokens_of_a_step_come_in_pieces(most: int, error: Exception):
    """Half as many at a time, until memory suffices: those of the last attempt are all of them, in order."""
    step, taken = step_of(ROWS), list[Step]()
    compute_in_pieces(step, limited(most, taken, error))
    size = {1: 1, 2: 2, 3: 2, 5: 5}[most]
    assert all(len(piece.rows) == 1 and piece.measures.num_tokens <= size for piece in taken)
    last = [token for piece in taken for token in tokens_of(piece)][-10:]
    assert last == tokens_of(step)
    for piece in taken:
        ((start, count),) = zip(piece.starts, piece.counts, strict=True)
        assert piece.measures == Measures(count, start + count, False)
        assert len(piece.sample_rows) == len(piece.sample_sources) == 0 and piece.num_logits is None


def test_positions_that_are_sampled_from():
    """The last one of each row with a sample, once for two samples; others are not computed again."""
    step = sampled_positions(step_of(ROWS, [(7, 2), (4, 0), (9, 2)]))
    assert tokens_of(step) == [(4, 4), (7, 6)]
    assert step.sample_rows.tolist() == [7, 4, 9] and step.sample_sources.tolist() == [1, 0, 1]
    assert step.measures == Measures(2, 7, False)


def test_drafts_are_verified_at_several_positions():
    """As many as the sample with most logits of a row asks for, up to the row's end."""
    step = sampled_positions(step_of(ROWS, [(4, 0), (7, 2), (8, 2)], [2, 1, 3]))
    assert tokens_of(step) == [(4, 3), (4, 4), (7, 4), (7, 5), (7, 6)]
    assert step.num_logits is not None and step.num_logits.tolist() == [2, 1, 3]
    assert step.measures == Measures(5, 7, False)


def test_a_step_in_which_each_row_samples_is_in_order():
    samples = [(row, number) for number, (row, _, _) in enumerate(ROWS)]
    step = sampled_positions(step_of(ROWS, samples))
    assert step.measures.in_order and tokens_of(step) == [(4, 4), (2, 9), (7, 6)]
    assert not sampled_positions(step_of(ROWS, samples[::-1])).measures.in_order


def test_columns_lie_one_behind_the_other():
    """At the address that compiled code is given."""
    step = sampled_positions(step_of(ROWS, [(7, 2), (4, 0)]))
    flat = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * 10).from_address(step.address))
    assert flat.tolist() == [4, 7, 4, 6, 1, 1, 7, 4, 1, 0]
