"""Speculation of one executor: drafts for the rows of a plan, and what becomes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.speculation.drafter import BlockDrafter, Drafter, RowDrafter
from worker.speculation.sources import Shorten, Sources
from worker.step.plan_reader import RowFeature, RowStops, Swaps
from worker.step.rows import RowTable, column, require

Draft = Callable[[list[int], list[int]], list[list[int]]]
"""Returns at most so many tokens for each of some rows."""


@dataclass(frozen=True, slots=True)
class StepDrafts:
    """Drafts of a plan: in the row table while the step computes, and taken back before it samples. R: rows
    that compute, A: rows that sample."""

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


MakeSources = Callable[[Sequence[tuple[int, Drafter]], int, Shorten], Sources]
"""See Sources."""


class StateUser(Protocol):
    """What keeps a state per row, which holds no token before it is accepted."""

    def accept(self, rows: Integers, counts: Integers) -> None:
        """Takes how many drafted tokens of the rows [A] were accepted."""


class Speculator:
    """Drafts as its options say. A worker.step.plan_reader.RowFeature."""

    def __init__(
        self,
        options: worker_pb2.Speculation,
        drafters: Sequence[tuple[int, Drafter]],
        rows: RowTable,
        states: StateUser | None = None,
        sources: MakeSources = Sources,
    ) -> None:
        """drafters: see Sources. states: of the target's rows; None: it keeps none. sources: makes the
        sources."""
        self._sources, self._rows = sources(drafters, options.tokens, self._until_end), rows
        of_rows = [each for _, each in drafters if isinstance(each, RowDrafter)]
        self._stops = RowStops()
        self.features: tuple[RowFeature, ...] = (self, self._stops, *of_rows)
        """What is told of rows, in this order."""
        self._of_blocks = [each for each in of_rows if isinstance(each, BlockDrafter)]
        self._states = states
        self._batch = options.batch
        self._beams: set[int] = set()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        if new.num_beam_candidates:
            self._beams.add(row)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row, which is drafted for on its own."""
        if source_row in self._beams:
            self._beams.add(row)

    def remove_row(self, row: int) -> None:
        self._beams.discard(row)
        self._sources.remove_row(row)

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        """Takes which blocks of the cache came back from host memory, then were copied. sources, targets:
        [C]."""
        for drafter in self._of_blocks:
            drafter.move_blocks(swaps, sources, targets)

    def make_drafts(self, plan: worker_pb2.StepPlan) -> StepDrafts | None:
        """Drafts for a plan; None: it has no room for drafts. Raises PlanError."""
        for drafter in self._of_blocks:
            drafter.write_blocks(column(plan.rows), column(plan.starts), column(plan.counts))
        return make_drafts(plan, self._rows, self._draft) if plan.sample_counts else None

    def judge(self, rows: Integers, drafts: StepDrafts, counts: Integers) -> None:
        """Takes how many tokens the rows [A] got from a step with drafts. counts: [A]."""
        for row, tokens, count in zip(rows.tolist(), drafts.tokens, counts.tolist(), strict=True):
            if tokens:
                self._sources.judge(row, int(self._rows.num_tokens[row]), len(tokens), count - 1)
        if self._states is not None:
            self._states.accept(rows, np.maximum(counts - 1, 0))

    def methods(self, rows: Integers, drafts: StepDrafts) -> list[int]:
        """Returns what drafted for the rows [A] in this step: DraftMethods; 0: nothing did."""
        drafted = zip(rows.tolist(), drafts.tokens, strict=True)
        return [self._sources.method(row) if tokens else 0 for row, tokens in drafted]

    @property
    def computed_prompts(self) -> bool:
        """Whether a draft model computed prompts for the last drafts."""
        return self._sources.computed_prompts

    def next_counts(self, rows: Integers) -> Sequence[int]:
        """Returns how many tokens would be drafted now for each of the rows [A] that have just sampled.

        Empty: none, as where so many rows decode that drafts do not pay.
        """
        if len(rows) >= self._batch:
            return ()
        members = rows.tolist()
        places = self._places(members, [self._rows.max_model_len] * len(members))
        lengths = self._sources.foresee(places, self._rows.num_tokens)
        return [lengths.get(row, 0) for row in members] if lengths else ()

    def _places(self, rows: list[int], most: list[int]) -> dict[int, int]:
        """Returns how many tokens may be drafted for rows [N], at most so many."""
        left = np.maximum(self._rows.max_model_len - 1 - self._rows.num_tokens[rows], 0)
        places = zip(rows, map(min, most, left.tolist()), strict=True)
        return {row: length for row, length in places if row not in self._beams}

    def _draft(self, rows: list[int], most: list[int]) -> list[list[int]]:
        """Returns up to most [N] tokens for each of the rows [N]."""
        found = self._sources.draft(self._places(rows, most), self._rows.num_tokens)
        return [found.get(row, []) for row in rows]

    def _until_end(self, row: int, tokens: list[int]) -> list[int]:
        """Returns the tokens of a draft up to the first that may end the row: nothing is sampled behind an
        end."""
        return list(takewhile(lambda token: not self._stops.may_end(row, token), tokens))
