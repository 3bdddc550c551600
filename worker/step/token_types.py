"""Rows whose prompts are two texts: tokens of the second one have the type 1, all others 0."""

import numpy as np
import torch

from kernels.api import StepBatch
from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import require


class TokenTypeRows(ValueByRow[int]):
    """Where the second text of each row begins."""

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if new.pooling.second_text:
            require(new.pooling.second_text < len(prompt_ids), f"row {row} has no second text")
            self._by_row[row] = new.pooling.second_text

    def put(self, step: Step, batch: StepBatch) -> StepBatch:
        """Returns the batch of a step with the types of its tokens, if one of them may have the type 1."""
        types = self.of_step(batch.row_starts, step)
        return batch if types is None else batch.with_token_types(torch.from_numpy(types))

    def of_step(self, row_starts: Integers, step: Step) -> Integers | None:
        """Returns the types [T] of the tokens of a step; None: no row has two texts, and all types are 0.
        row_starts: [R] index of each row's first token."""
        if not self._by_row:
            return None
        types = np.zeros(int(step.counts.sum()), np.int64)
        columns = step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), row_starts.tolist()
        for row, start, count, first in zip(*columns, strict=True):
            if row in self._by_row:
                types[first + max(self._by_row[row] - start, 0) : first + count] = 1
        return types
