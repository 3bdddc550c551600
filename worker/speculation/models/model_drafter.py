"""Runs a draft model on the rows of the target.

The rows' tokens and block tables are the target's; the backend has a model, a cache and a sampler of its own.
Drafting is a loop of small steps: all rows that still want a token compute theirs together, and what each has
sampled is appended to it, as a plan of the core would do. At the end the rows have the tokens that they had.

The first of these steps also computes what the draft model lacks of a row: two tokens after a draft that was
accepted as a whole, and all of a prompt that it has never seen. So many of them that a step is full are left
for the next step of the target, and the row is not drafted for meanwhile.
"""

from collections.abc import Sequence

import numpy as np

from kernels.api import SamplingColumns
from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2
from worker.executor.backend import Backend
from worker.speculation.drafter import BlockDrafter
from worker.speculation.models.draft_slots import DraftSlots
from worker.step.beams import NO_TOKEN
from worker.step.plan_reader import Step, Swaps, checked_step
from worker.step.rows import RowTable

CATCH_UP = 8
"""Tokens of a row that the draft model may lack, and still draft for it in the same step: more take longer
than a draft is worth."""
NO_PLAN = worker_pb2.StepPlan()
"""Of a step that no core has planned."""
_KEPT = (*SamplingColumns.NEUTRAL, "seed")
"""Parameters of a row that a draft model samples with."""


def draft_row(new: worker_pb2.NewRow) -> worker_pb2.NewRow:
    """Returns a row that begins as this one does, as far as a draft model's sampler needs it.

    It takes the row's number of (seed, sequence index, position), its temperature, filters, bias and allowed
    tokens: where its distribution is that of the target, so is its token. Penalties and bad words would need
    a history that goes back where drafts are refused; without them it only drafts worse.
    """
    sampling = generation_pb2.SamplingParams(allowed_token_ids=new.sampling.allowed_token_ids)
    for name in _KEPT:
        if new.sampling.HasField(name):
            setattr(sampling, name, getattr(new.sampling, name))
    for token, bias in new.sampling.logit_bias.items():
        sampling.logit_bias[token] = bias
    return worker_pb2.NewRow(row=new.row, sequence_index=new.sequence_index, sampling=sampling)


class ModelDrafter(BlockDrafter):
    """Drafts by a model."""

    is_free = False

    def __init__(
        self,
        backend: Backend,
        positions: "memoryview[int]",
        slots: DraftSlots,
        rows: RowTable,
        budget: int,
        catch_up: int = CATCH_UP,
    ) -> None:
        """backend: of the draft model; its host knows tokens at launch. positions: of the rows, as its
        sampler reads them. slots: of its cache. budget: tokens that it computes in a step at most. catch_up:
        see CATCH_UP."""
        self._backend, self._positions, self.slots = backend, positions, slots
        self._rows, self._budget, self._catch_up_tokens = rows, budget, catch_up

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        for feature in self._backend.features:
            feature.add_row(row, draft_row(new), prompt_ids, output_ids)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        for feature in self._backend.features:
            feature.fork_row(row, source_row, sequence_index)

    def remove_row(self, row: int) -> None:
        for feature in self._backend.features:
            feature.remove_row(row)

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        if swaps is not None:
            self.slots.forget(swaps.in_blocks)
        if len(sources):
            self.slots.copy(sources, targets)
            self._backend.copy_blocks(sources, targets)

    def write_blocks(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        self.slots.write(rows, starts, counts)

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        drafts: dict[int, list[int]] = {row: [] for row in rows}
        wanted, index = dict(zip(rows, most, strict=True)), np.array(rows, np.int64)
        num_tokens, num_computed = self._rows.num_tokens[index], self._rows.num_computed[index]
        for row, position in zip(rows, (num_tokens - self._rows.prompt_lens[index]).tolist(), strict=True):
            self._positions[row] = position
        active, tokens = self._catch_up(index)
        self.computed_prompts = len(active) < len(rows)
        while active:
            for row, token in zip(active, tokens, strict=True):
                drafts[row].append(token)
            active = [row for row in active if len(drafts[row]) < wanted[row]]
            active, tokens = self._go_on(active)
        for row, start, end in zip(
            rows, num_tokens.tolist(), self._rows.num_tokens[index].tolist(), strict=True
        ):
            if end - 1 > start:
                self.slots.computed(row, start, end - 1)
        self._rows.num_tokens[index], self._rows.num_computed[index] = num_tokens, num_computed
        return [drafts[row] for row in rows]

    def _catch_up(self, rows: Integers) -> tuple[list[int], list[int]]:
        """Computes what the draft model lacks of rows [N], and samples. Returns the rows that sampled, and
        their tokens, which are appended to them."""
        starts = np.array([self.slots.length(row) for row in rows.tolist()], np.int64)
        lacks = self._rows.num_tokens[rows] - starts
        ends = np.minimum(np.cumsum(lacks), self._budget)
        counts = np.diff(ends, prepend=0)
        sampling = np.flatnonzero((counts == lacks) & (lacks <= self._catch_up_tokens))
        computing = np.flatnonzero(counts)
        places = np.searchsorted(computing, sampling)
        columns = rows[computing], starts[computing], counts[computing], rows[sampling], places
        tokens = self._run(self._step(columns))
        for row, start, count in zip(rows.tolist(), starts.tolist(), counts.tolist(), strict=True):
            if count:
                self.slots.computed(row, start, start + count)
        return self._append(rows[sampling], tokens)

    def _go_on(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Computes the last token of some rows, and samples; see _catch_up()."""
        if not rows:
            return [], []
        numbers, count = np.array(rows, np.int64), len(rows)
        lasts = self._rows.num_tokens[numbers] - 1
        columns = numbers, lasts, np.ones(count, np.int64), numbers, np.arange(count)
        return self._append(numbers, self._run(self._step(columns)))

    def _step(self, columns: Sequence[Integers]) -> Step:
        """Returns a step, checked as those of the core are. columns: see checked_step()."""
        joined, check = np.concatenate(columns), self._backend.plan_check
        return checked_step(joined, len(columns[0]), self._rows, self._budget, check)

    def _run(self, step: Step) -> Integers:
        """Returns the tokens of the rows [A] that sample."""
        with self._backend.step(NO_PLAN):
            self._backend.upload(step, Wanted.TOKENS)
            outputs = self._backend.forward()
            if not len(step.sample_rows):
                return step.sample_rows
            return outputs.sample(step.sample_rows, None, {}).host_tokens

    def _append(self, rows: Integers, tokens: Integers) -> tuple[list[int], list[int]]:
        """Appends tokens [A] to rows [A]. Returns both, without the rows that have no token."""
        known = tokens != NO_TOKEN
        if not known.all():
            rows, tokens = rows[known], tokens[known]
        self._rows.append(rows, tokens)
        return rows.tolist(), tokens.tolist()
