"""Speculation of one executor: drafts for the rows of a plan, and what becomes of them."""

from collections.abc import Sequence
from itertools import takewhile

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.speculation import Speculation
from worker.speculation.draft_lengths import DraftLengths
from worker.speculation.drafter import Drafter
from worker.speculation.drafts import StepDrafts, make_drafts
from worker.step.rows import RowTable


class Speculator:
    """Drafts as its options say. A worker.step.plan_reader.RowFeature."""

    def __init__(self, options: Speculation, drafter: Drafter, rows: RowTable) -> None:
        self._drafter, self._rows = drafter, rows
        self._batch = options.batch
        self._lengths = DraftLengths(options.tokens)
        self._unable: set[int] = set()  # rows that are beams or have a grammar
        self._stops: dict[int, frozenset[int]] = {}  # tokens that may end a row

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row."""
        if new.num_beam_candidates or new.grammar:
            self._unable.add(row)
        if new.stop_token_ids:
            self._stops[row] = frozenset(new.stop_token_ids)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row, which is drafted for on its own."""
        if source_row in self._unable:
            self._unable.add(row)
        if source_row in self._stops:
            self._stops[row] = self._stops[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._unable.discard(row)
        self._stops.pop(row, None)
        self._lengths.remove_row(row)
        self._drafter.remove_row(row)

    def make_drafts(self, plan: worker_pb2.StepPlan) -> StepDrafts | None:
        """Drafts for a plan; None: it has no room for drafts. Raises PlanError."""
        return make_drafts(plan, self._rows, self._draft) if plan.sample_counts else None

    def judge(self, rows: Integers, drafts: StepDrafts, counts: Integers) -> None:
        """Takes how many tokens the rows [A] got from a step with drafts. counts: [A]."""
        for row, tokens, count in zip(rows.tolist(), drafts.tokens, counts.tolist(), strict=True):
            if tokens:
                self._lengths.judge(row, int(self._rows.num_tokens[row]), len(tokens), count - 1)

    def next_counts(self, rows: Integers) -> Sequence[int]:
        """Returns how many tokens would be drafted now for each of the rows [A] that have just sampled.

        Empty: none, as where so many rows decode that drafts do not pay.
        """
        if len(rows) >= self._batch:
            return ()
        counts = [len(self._draft(row, self._rows.max_model_len)) for row in rows.tolist()]
        return counts if any(counts) else ()

    def _draft(self, row: int, most: int) -> list[int]:
        """Returns up to `most` tokens, none of which may end the row: nothing is sampled behind an end."""
        num_tokens = int(self._rows.num_tokens[row])
        places = self._rows.max_model_len - 1 - num_tokens
        length = min(most, places, self._lengths.length(row, num_tokens))
        if length <= 0 or row in self._unable:
            return []
        tokens, stops = self._drafter.draft(row, length), self._stops.get(row)
        return tokens if stops is None else list(takewhile(lambda token: token not in stops, tokens))
