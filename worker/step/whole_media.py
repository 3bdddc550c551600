"""Rows whose tokens of an item of media see all of it, with what follows them (AttentionPlan.with_last_seen).

A step computes such an item whole, or its end, where blocks of its beginning were found in the prefix cache.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from kernels.api import StepBatch
from kernels.ops.attention.ragged import Integers, ranges
from pagewire.internal.v1 import worker_pb2
from worker.step.media import positions_of
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import require


class WholeMediaRows(ValueByRow[Sequence[range]]):
    """The positions of each row's items, in order."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        spans = []
        for item in new.media:
            positions = positions_of(row, item)
            spans.append(range(int(positions[0]), int(positions[-1]) + 1))
            require(len(spans[-1]) == len(positions), f"row {row} has an item with gaps, which is seen whole")
        if spans:
            self._by_row[row] = spans

    def computes(self, step: Step) -> bool:
        """Returns whether a step computes positions of an item. Raises PlanError."""
        return any(True for _ in self._touched(step))

    def put(self, step: Step, batch: StepBatch) -> StepBatch:
        """Returns the batch of a step whose tokens of items see these whole. Raises PlanError."""
        last = self.of_step(batch.row_starts, step)
        return batch if last is None else batch.with_last_seen(torch.from_numpy(last))

    def of_step(self, row_starts: Integers, step: Step) -> Integers | None:
        """Returns the last position [T] int64 that each token of a step sees; None: its own, for all of them.
        row_starts: [R] index of each row's first token. Raises PlanError."""
        touched = list(self._touched(step))
        if not touched:
            return None
        last = np.empty(int(step.counts.sum()), np.int64)
        owners, positions = ranges(step.starts, step.counts)
        last[positions - step.starts[owners] + row_starts[owners]] = positions
        for entry, span in touched:
            start, first = int(step.starts[entry]), int(row_starts[entry])
            last[first + max(span.start - start, 0) : first + span.stop - start] = span.stop - 1
        return last

    def _touched(self, step: Step) -> Iterator[tuple[int, range]]:
        """Yields the items of which a step computes positions, each with the index of its row in the step."""
        if not self._by_row:
            return
        columns = step.rows.tolist(), step.starts.tolist(), step.counts.tolist()
        for entry, (row, start, count) in enumerate(zip(*columns, strict=True)):
            for span in self._by_row.get(row, ()):
                if span.start < start + count and start < span.stop:
                    require(span.stop <= start + count, f"row {row} computes a part of what is seen whole")
                    yield entry, span
