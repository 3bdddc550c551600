"""A step for which memory does not suffice is computed in pieces.

What a forward pass allocates grows with its tokens. Keys and values do not depend on how a prompt is cut, and
neither do the logits of its last position. So such a step is computed as several passes over some tokens each
and one over the positions that are sampled from: more work, and the same bits.
"""

from collections.abc import Callable, Iterator

import numpy as np

from kernels.ops.attention.ragged import Integers
from worker.step.exhaustion import is_out_of_memory
from worker.step.plan_reader import Measures, Step


def compute_in_pieces(step: Step, forward: Callable[[Step], None]) -> None:
    """Computes the keys and values of a step, in passes of half its tokens, or of fewer where these do not
    suffice. Raises what `forward` raises for single tokens."""
    size = step.measures.num_tokens
    while True:
        size = max(size // 2, 1)
        try:
            for piece in _pieces(step, size):
                forward(piece)
            return
        except (MemoryError, RuntimeError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise


def sampled_positions(step: Step) -> Step:
    """Returns the step that computes once more the positions of a step that are sampled from, and no others.
    At least one row must sample."""
    sources, places = np.unique(step.sample_sources, return_inverse=True)
    counts = np.ones(len(sources), np.int64)
    if step.num_logits is not None:
        np.maximum.at(counts, places, step.num_logits)
    ends = (step.starts + step.counts)[sources]
    rows = step.rows[sources]
    return _step(rows, ends - counts, counts, step.sample_rows, places, step.num_logits)


def _pieces(step: Step, size: int) -> Iterator[Step]:
    """Yields steps of at most so many tokens, each of one row, in the order of the step: a row may read what
    a row before it writes."""
    none = np.empty(0, np.int64)
    for row, start, count in zip(step.rows, step.starts, step.counts, strict=True):
        for first in range(int(start), int(start + count), size):
            length = min(size, int(start + count) - first)
            yield _step(np.array([row]), np.array([first]), np.array([length]), none, none, None)


def _step(
    rows: Integers,
    starts: Integers,
    counts: Integers,
    sample_rows: Integers,
    sources: Integers,
    num_logits: Integers | None,
) -> Step:
    """Returns a step with columns of its own. rows, starts, counts: [R]; sample_rows, sources: [A]."""
    columns = np.concatenate([rows, starts, counts, sample_rows, sources]).astype(np.int64)
    parts = np.split(columns, np.cumsum([len(rows), len(rows), len(rows), len(sample_rows)]))
    in_order = len(rows) == len(sample_rows) and bool((parts[4] == np.arange(len(rows))).all())
    measures = Measures(int(counts.sum()), int((parts[1] + parts[2]).max()), in_order)
    return Step(parts[0], parts[1], parts[2], parts[3], parts[4], columns.ctypes.data, measures, num_logits)
