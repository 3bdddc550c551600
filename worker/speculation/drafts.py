"""The drafts of one step: in the row table while the step computes, and taken back before it samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.rows import RowTable, column, require

Draft = Callable[[int, int], list[int]]
"""Returns at most so many tokens for a row."""


@dataclass(frozen=True, slots=True)
class StepDrafts:
    """Drafts of a plan. R: rows that compute, A: rows that sample."""

    tokens: list[list[int]]  # [A] drafted tokens
    counts: Integers  # [R] tokens to compute: those of the plan, less those that are not drafted

    @property
    def num_logits(self) -> Integers:
        """[A] positions from which each row samples: the last ones that it computes."""
        return np.array([1 + len(tokens) for tokens in self.tokens], np.int64)

    def take_back(self, sample_rows: Integers, rows: RowTable) -> None:
        """Leaves the rows the tokens that they had. sample_rows: [A]."""
        rows.num_tokens[sample_rows] -= self.num_logits - 1


def make_drafts(plan: worker_pb2.StepPlan, rows: RowTable, draft: Draft) -> StepDrafts:
    """Drafts what a plan with sample_counts has room for, and appends it to the rows: read_step() then checks
    the step as any other. Raises PlanError when a row has no place for its drafts."""
    sample_rows, sources = column(plan.sample_rows), column(plan.sample_sources)
    sample_counts, computing = column(plan.sample_counts), column(plan.rows)
    counts = column(plan.counts)
    require(len(sample_counts) == len(sample_rows) == len(sources), "sample columns differ in length")
    require((sample_counts > 0).all(), "a row samples no token")
    require(len(counts) == len(computing), "rows and counts differ in length")
    tokens: list[list[int]] = [[] for _ in sample_rows]
    for entry in np.flatnonzero(sample_counts > 1).tolist():
        row, source, room = int(sample_rows[entry]), int(sources[entry]), int(sample_counts[entry]) - 1
        require(row < rows.max_num_rows and rows.num_tokens[row] > 0, f"row {row} is not in use")
        require(source < len(computing) and computing[source] == row, f"row {row} does not compute")
        require(counts[source] > room, f"row {row} samples more tokens than it computes")
        end = int(rows.num_tokens[row])
        require(end + room < rows.max_model_len, f"row {row} is drafted beyond max_model_len")
        tokens[entry] = draft(row, room)
        counts[source] -= room - len(tokens[entry])
        rows.token_ids[row, end : end + len(tokens[entry])] = tokens[entry]
        rows.num_tokens[row] += len(tokens[entry])
    return StepDrafts(tokens, counts)
