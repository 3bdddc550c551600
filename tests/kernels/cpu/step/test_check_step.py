"""Whether a step fits the rows: each limit at the last number that fits, and at the first that does not."""

from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.step.check_step import check_step  # noqa: E402
from kernels.cpu.step.records import CheckStepJob  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

BLOCK, MOST_LENGTH = 4, 12
GUARD = 77
TABLE = {"num_tokens": [9, 3, 0, 12], "num_computed": [5, 2, 0, 11], "num_blocks": [3, 1, 0, 3]}
"""Row 2 is not in use; row 3 is as long as a row may be."""


@dataclass
class Step:
    """rows: (row, start, count). samples: (row, source). blocks: of each row; None: as in TABLE."""

    rows: list[tuple[int, int, int]]
    samples: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[int] | None = None


def check(step: Step) -> CheckStepJob:
    """The job behind its call; what lies behind the tables stays, and so do the marks."""
    tables = {name: np.array([*values, GUARD], np.int64) for name, values in TABLE.items()}
    if step.blocks is not None:
        tables["num_blocks"][:4] = step.blocks
    marks = np.array([0, 0, 0, 0, GUARD], np.int64)
    parts = (np.array(step.rows).reshape(-1, 3), np.array(step.samples).reshape(-1, 2))
    columns = np.concatenate([part.T.reshape(-1) for part in parts]).astype(np.int64)
    job = CheckStepJob(
        **{name: table.ctypes.data for name, table in tables.items()},
        marks=marks.ctypes.data,
        max_rows=4,
        block_size=BLOCK,
        max_length=MOST_LENGTH,
        columns=columns.ctypes.data,
        num_rows=len(step.rows),
        num_samples=len(step.samples),
        context=5,
        tokens=5,
        in_order=5,
    )
    check_step(job)
    assert marks.tolist() == [0, 0, 0, 0, GUARD]
    return job


FITS: dict[str, tuple[Step, tuple[int, int, int]]] = {
    "nothing": (Step([]), (0, 0, 1)),
    "a piece of a prompt": (Step([(0, 0, 4)]), (4, 4, 0)),
    "from what is computed to all tokens": (Step([(0, 5, 4)]), (4, 9, 0)),
    "computed again": (Step([(0, 3, 2)]), (2, 5, 0)),
    "a sample": (Step([(0, 5, 4)], [(0, 0)]), (4, 9, 1)),
    "two samples in order": (Step([(1, 2, 1), (0, 5, 4)], [(1, 0), (0, 1)]), (5, 9, 1)),
    "two samples in another order": (Step([(1, 2, 1), (0, 5, 4)], [(0, 1), (1, 0)]), (5, 9, 0)),
    "one of two samples": (Step([(1, 2, 1), (0, 5, 4)], [(1, 0)]), (5, 9, 0)),
    "the longest row": (Step([(3, 11, 1)]), (1, 12, 0)),
    "blocks that are just full": (Step([(0, 4, 4)], blocks=[2, 1, 0, 3]), (4, 8, 0)),
    "the longest context is not the last": (Step([(0, 5, 4), (1, 0, 1)]), (5, 9, 0)),
}


@pytest.mark.parametrize("name", FITS)
def test_steps_that_fit(name: str):
    """Tokens, the largest end, and whether each row samples, in order."""
    step, expected = FITS[name]
    job = check(step)
    assert (job.tokens, job.context, job.in_order) == expected


DOES_NOT_FIT = {
    "a row below all": Step([(-1, 0, 1)]),
    "a row above all": Step([(4, 0, 1)]),
    "a row that is not in use": Step([(2, 0, 1)]),
    "a row twice": Step([(0, 0, 1), (0, 1, 1)]),
    "no token": Step([(0, 5, 0)]),
    "fewer than none": Step([(0, 5, -1)]),
    "more tokens than there are": Step([(0, 5, 5)]),
    "behind what is computed": Step([(0, 6, 1)]),
    "more tokens than blocks hold": Step([(0, 5, 4)], blocks=[2, 1, 0, 3]),
    "no blocks": Step([(1, 0, 1)], blocks=[3, 0, 0, 3]),
    "wrong in the second row": Step([(1, 2, 1), (0, 6, 1)]),
    "a source below all": Step([(0, 5, 4)], [(0, -1)]),
    "a source above all": Step([(0, 5, 4)], [(0, 1)]),
    "a sample of no row": Step([(0, 5, 4)], [(4, 0)]),
    "a sample of a row below all": Step([(0, 5, 4)], [(-1, 0)]),
    "a row samples twice": Step([(0, 5, 4)], [(0, 0), (0, 0)]),
    "a sample before the last token": Step([(0, 5, 3)], [(0, 0)]),
    "a sample of another row's end": Step([(0, 5, 4), (1, 2, 1)], [(0, 1)]),
    "a sample of the longest row": Step([(3, 11, 1)], [(3, 0)]),
}


@pytest.mark.parametrize("name", DOES_NOT_FIT)
def test_steps_that_do_not_fit(name: str):
    """They leave no mark; the next step is checked as if they had not been."""
    job = check(DOES_NOT_FIT[name])
    assert job.tokens == -1
    assert check(Step([(0, 5, 4)], [(0, 0)])).tokens == 4


def test_a_row_may_sample_from_one_that_is_as_long(monkeypatch: pytest.MonkeyPatch):
    """A fork: two rows have the same tokens, of which one is computed."""
    monkeypatch.setitem(TABLE, "num_tokens", [9, 9, 0, 12])
    job = check(Step([(0, 5, 4)], [(0, 0), (1, 0)]))
    assert (job.tokens, job.in_order) == (4, 0)
