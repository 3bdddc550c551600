"""Runs a draft model on the rows of the target.

The rows' tokens and block tables are the target's; the backend has a model, a cache and a sampler of its own.
Drafting is a loop of small steps: all rows that still want a token compute theirs together, and what each has
sampled is appended to it, as a plan of the core would do. At the end the rows have the tokens that they had.

The first of these steps also computes what the draft model lacks of a row: two tokens after a draft that was
accepted as a whole, and all of a prompt that it has never seen. So many of them that a step is full are left
for the next step of the target, and the row is not drafted for meanwhile.
"""

from collections.abc import MutableSequence, Sequence

import numpy as np

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.draft_model.params import draft_row
from worker.executor.backend import Backend
from worker.speculation.draft_slots import DraftSlots
from worker.step.beams import NO_TOKEN
from worker.step.plan_reader import Swaps, read_step
from worker.step.rows import RowTable

CATCH_UP = 8
"""Tokens of a row that the draft model may lack, and still draft for it in the same step: more take longer
than a draft is worth."""


class ModelDrafter:
    """A worker.speculation.drafter.Drafter and a worker.step.plan_reader.RowFeature."""

    is_free = False

    def __init__(
        self,
        backend: Backend,
        positions: MutableSequence[int],
        slots: DraftSlots,
        rows: RowTable,
        budget: int,
        catch_up: int = CATCH_UP,
    ) -> None:
        """backend: of the draft model; its host knows tokens at launch. positions: of the rows, as its
        sampler reads them. slots: of its cache. budget: tokens that it computes in a step at most. catch_up:
        see CATCH_UP."""
        self._backend, self._positions, self.slots = backend, positions, slots
        self._rows, self._budget, self._catch_up = rows, budget, catch_up

        self.computed_prompts = False

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row."""
        for feature in self._backend.features:
            feature.add_row(row, draft_row(new), prompt_ids, output_ids)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        for feature in self._backend.features:
            feature.fork_row(row, source_row, sequence_index)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        for feature in self._backend.features:
            feature.remove_row(row)

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        """See worker.speculation.speculator.BlockUser."""
        if swaps is not None:
            self.slots.forget(swaps.in_blocks)
        if len(sources):
            self.slots.copy(sources, targets)
            self._backend.copy_blocks(sources, targets)

    def write_blocks(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """See worker.speculation.speculator.BlockUser."""
        self.slots.write(rows, starts, counts)

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        """See Drafter."""
        drafts: dict[int, list[int]] = {row: [] for row in rows}
        wanted, index = dict(zip(rows, most, strict=True)), np.array(rows, np.int64)
        num_tokens, num_computed = self._rows.num_tokens[index], self._rows.num_computed[index]
        for row, position in zip(rows, (num_tokens - self._rows.prompt_lens[index]).tolist(), strict=True):
            self._positions[row] = position
        active, tokens = self._step(list(rows))
        self.computed_prompts = len(active) < len(rows)
        while active:
            for row, token in zip(active, tokens, strict=True):
                drafts[row].append(token)
            active = [row for row in active if len(drafts[row]) < wanted[row]]
            active, tokens = self._step(active)
        self._rows.num_tokens[index], self._rows.num_computed[index] = num_tokens, num_computed
        return [drafts[row] for row in rows]

    def _step(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Computes what the draft model lacks of some rows, and samples. Returns the rows that sampled, and
        their tokens, which are appended to them."""
        if not rows:
            return [], []
        starts = [self.slots.length(row) for row in rows]
        lacks = self._rows.num_tokens[rows] - starts
        ends = np.minimum(np.cumsum(lacks), self._budget)
        counts = np.diff(ends, prepend=0)
        sampling = np.flatnonzero((counts == lacks) & (lacks <= self._catch_up))
        computing = np.flatnonzero(counts)
        places = np.searchsorted(computing, sampling)
        numbers = np.array(rows)
        plan = worker_pb2.StepPlan(
            rows=pack_u32(numbers[computing].tolist()),
            starts=pack_u32(np.array(starts)[computing].tolist()),
            counts=pack_u32(counts[computing].tolist()),
            sample_rows=pack_u32(numbers[sampling].tolist()),
            sample_sources=pack_u32(places.tolist()),
        )
        tokens = self._run(plan, numbers[sampling])
        for place in computing.tolist():
            self.slots.computed(rows[place], starts[place], starts[place] + int(counts[place]))
        known = tokens != NO_TOKEN
        self._rows.append(numbers[sampling][known], tokens[known])
        return numbers[sampling][known].tolist(), tokens[known].tolist()

    def _run(self, plan: worker_pb2.StepPlan, sampling: Integers) -> Integers:
        """Returns the tokens of the rows [A] that sample."""
        with self._backend.step(plan):
            self._backend.upload(
                read_step(plan, self._rows, self._budget, self._backend.plan_check), tokens_only=True
            )
            outputs = self._backend.forward()
            if not len(sampling):
                return sampling
            return outputs.sample(sampling, None, {}).host_tokens
