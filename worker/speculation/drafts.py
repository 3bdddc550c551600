"""The drafts of one step: in the row table while the step computes, and taken back before it samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.rows import RowTable, column, require

Draft = Callable[[list[int], list[int]], list[list[int]]]
"""Returns at most so many tokens for each of some rows."""


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
    entries = np.flatnonzero(sample_counts > 1)
    drafting, rooms = sample_rows[entries], sample_counts[entries] - 1
    for row, source, room in zip(drafting.tolist(), sources[entries].tolist(), rooms.tolist(), strict=True):
        require(row < rows.max_num_rows and rows.num_tokens[row] > 0, f"row {row} is not in use")
        require(source < len(computing) and computing[source] == row, f"row {row} does not compute")
        require(counts[source] > room, f"row {row} samples more tokens than it computes")
        require(
            rows.num_tokens[row] + room < rows.max_model_len, f"row {row} is drafted beyond max_model_len"
        )
    drafted = draft(drafting.tolist(), rooms.tolist())
    for entry, row, room, found in zip(entries.tolist(), drafting, rooms, drafted, strict=True):
        end = rows.num_tokens[row]
        tokens[entry] = found
        counts[sources[entry]] -= room - len(found)
        rows.token_ids[row, end : end + len(found)] = found
        rows.num_tokens[row] += len(found)
    return StepDrafts(tokens, counts)
