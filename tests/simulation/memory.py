"""What lies in the blocks of a worker that computes nothing: the check that block tables are right.

Tokens of the simulated worker do not depend on its cache, so a wrong block would change nothing that a
client sees. Here every slot is tagged, when a token is computed into it, with a hash of all tokens up to
that one and of the namespace of the request. A row that computes must find in the blocks of its table
the tags of its own tokens, all of them. So a lost or misplaced block, a copy that was not made, a block
that was given to two owners or is taken for what it is not, is found in the step in which it is read.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kernels.ranges import Integers, ranges
from pagewire.internal.v1 import worker_pb2
from worker.rows import RowTable, column


class WrongMemory(AssertionError):
    """A row would read, or overwrite, what is not its own."""


class TaggedMemory:
    """Tags of the slots of the cache, beside the row table of a worker."""

    def __init__(self, rows: RowTable, num_host_blocks: int, namespace: Callable[[int], int]) -> None:
        """namespace: of the request with this seed; equal for requests that may share blocks."""
        self._rows, self._namespace = rows, namespace
        self._tags = np.zeros((rows.cache_blocks, rows.block_size), np.int64)
        self._host_tags = np.zeros((num_host_blocks, rows.block_size), np.int64)
        self._histories = np.zeros((rows.max_num_rows, rows.max_model_len), np.int64)
        self._lengths = [0] * rows.max_num_rows  # tokens of which histories are known
        self._roots = [0] * rows.max_num_rows

    def execute(self, plan: worker_pb2.StepPlan) -> None:
        """Call it when the rows have executed the plan. Raises WrongMemory."""
        for new in plan.new_rows:
            self._lengths[new.row], self._roots[new.row] = 0, self._namespace(new.sampling.seed)
        for fork in plan.forks:
            self._histories[fork.row] = self._histories[fork.source_row]
            self._lengths[fork.row] = self._lengths[fork.source_row]
            self._roots[fork.row] = self._roots[fork.source_row]
        self._swap(plan)
        self._copy(column(plan.copy_sources), column(plan.copy_targets))
        if plan.rows:
            self._compute(column(plan.rows), column(plan.starts), column(plan.counts))

    def _swap(self, plan: worker_pb2.StepPlan) -> None:
        out, back = column(plan.swap_out_host_blocks), column(plan.swap_in_host_blocks)
        if len(np.unique(out)) < len(out) or len(np.intersect1d(out, back)):
            raise WrongMemory("swaps of one plan depend on their order")
        self._host_tags[out] = self._tags[column(plan.swap_out_blocks)]
        self._tags[column(plan.swap_in_blocks)] = self._host_tags[back]

    def _copy(self, sources: Integers, targets: Integers) -> None:
        if len(np.unique(targets)) < len(targets) or len(np.intersect1d(sources, targets)):
            raise WrongMemory("copies of one plan depend on their order")
        self._tags[targets] = self._tags[sources]

    def _compute(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        ends = starts + counts
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            self._extend(row, end)
        owners, positions = ranges(starts, counts)
        blocks, offsets = self._slots(rows[owners], positions)
        if len(np.unique(blocks * self._rows.block_size + offsets)) < len(blocks):
            raise WrongMemory("two tokens are computed into one slot")
        self._tags[blocks, offsets] = self._histories[rows[owners], positions]
        owners, positions = ranges(np.zeros_like(ends), ends)
        wrong = self._tags[self._slots(rows[owners], positions)] != self._histories[rows[owners], positions]
        if wrong.any():
            first = int(wrong.argmax())
            raise WrongMemory(
                f"row {rows[owners[first]]} finds at position {positions[first]} what is not its own"
            )

    def _slots(self, rows: Integers, positions: Integers) -> tuple[npt.NDArray[np.int64], Integers]:
        """The block and the place in it of each token."""
        size = self._rows.block_size
        return self._rows.blocks[rows, positions // size], positions % size

    def _extend(self, row: int, end: int) -> None:
        """Makes the row's histories reach so far."""
        start = self._lengths[row]
        if start >= end:
            return
        history = int(self._histories[row, start - 1]) if start else self._roots[row]
        for position, token in enumerate(self._rows.token_ids[row, start:end].tolist(), start):
            history = hash((history, token))
            self._histories[row, position] = history
        self._lengths[row] = end
