"""The states of rows that layers of linear attention keep, a slot per row, beside the blocks.

A state holds all tokens of its row up to one position and cannot go back: a row begins at its first token or
with a checkpoint, and goes on where it has stopped. A checkpoint is a state that a step has copied behind
some tokens of a row, in a slot of its own behind those of the rows: what a plan restores is what an earlier
one has saved, perhaps for an engine core that was killed since. States of rows end with their core.

Drafted tokens do not enter a state: layers keep what they would do to it (kernels.ops.states.update_log), and
a row's next step begins with what those have done that were accepted.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch

from kernels.api import LayerCache, Plane, RowStateSpec, Spans, zeros
from kernels.ops.attention.ragged import Integers
from pagewire.errors import StartupError
from pagewire.host.resources import available_memory
from pagewire.internal.v1 import worker_pb2
from worker.memory.kv_cache import MEMORY_PART, KVCache, fitting
from worker.models.base import LanguageModel
from worker.step.plan_reader import Step
from worker.step.rows import column, require

WHAT, REMEDY = "cannot allocate the states of rows", "use a smaller --max-num-seqs or --state-checkpoints"


class RowStates:
    """The states of one worker. A worker.step.plan_reader.RowFeature."""

    def __init__(
        self,
        specs: Sequence[RowStateSpec],
        num_rows: int,
        device: torch.device,
        num_checkpoints: int = 0,
        drafts: int = 0,
    ) -> None:
        """specs: one per layer that has a state. drafts: the most drafted tokens of a row in a step. Raises
        StartupError when the memory is not there."""
        slots = num_rows + num_checkpoints

        def allocated(planes: Iterable[Plane], count: int) -> LayerCache:
            return tuple(_allocate((count, *each.block_shape), each.dtype, device) for each in planes)

        states = [allocated(spec.planes(), slots) for spec in specs]
        drafted = [allocated(spec.draft_planes(drafts), num_rows) for spec in specs]
        self.layers: list[LayerCache] = [(*of, *more) for of, more in zip(states, drafted, strict=True)]
        self.num_rows, self.num_checkpoints, self.drafts = num_rows, num_checkpoints, drafts
        self.tensors = [tensor for layer in self.layers for tensor in layer if tensor.numel()]
        self._states = [tensor for layer in states for tensor in layer]
        self._of_drafts = [tensor for layer in drafted for tensor in layer]
        self._lengths = np.zeros(slots, np.int64)  # tokens of each slot, with those that were accepted
        self._drafted = np.zeros(num_rows, np.int64)  # tokens of each row in the step that is computed
        self._accepted = np.zeros(slots, np.int64)  # of those of the last step; states do not hold them yet
        self._saves: list[tuple[int, int, int]] = []  # row, position and slot of each save of the plan

    @property
    def num_bytes(self) -> int:
        """Of all rows."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Layers take a row's state for zeros at its first token."""
        self._lengths[row] = self._accepted[row] = 0

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        self._copy(source_row, row)

    def remove_row(self, row: int) -> None:
        pass

    def begin(self, plan: worker_pb2.StepPlan) -> None:
        """Restores rows of a plan whose changes have been applied, and notes what it saves. Raises
        PlanError."""
        self._saves = []
        if plan.restore_rows or plan.restore_checkpoints:
            rows, checkpoints = self._columns(plan.restore_rows, plan.restore_checkpoints)
            for row, slot in zip(rows, checkpoints, strict=True):
                require(self._lengths[slot] > 0, "a checkpoint is restored that was not saved")
                self._copy(slot, row)
        if plan.save_rows or plan.save_checkpoints:
            rows, slots = self._columns(plan.save_rows, plan.save_checkpoints)
            positions = column(plan.save_positions).tolist()
            require(len(positions) == len(rows), "the columns of states to save differ in length")
            require(len(set(slots)) == len(slots), "two states are saved in one place")
            self._saves = list(zip(rows, positions, slots, strict=True))

    def _columns(self, rows: bytes, checkpoints: bytes) -> tuple[list[int], list[int]]:
        """Returns rows, and the slots of checkpoints."""
        of_rows, numbers = column(rows), column(checkpoints)
        require(len(of_rows) == len(numbers), "columns of rows and of checkpoints differ in length")
        require((of_rows < self.num_rows).all(), "a state is of no row")
        require((numbers < self.num_checkpoints).all(), "a checkpoint is out of range")
        return of_rows.tolist(), (numbers + self.num_rows).tolist()

    def mark(self, spans: Spans) -> None:
        """Writes what the plan saves, and what is drafted, into the spans of its step, behind check().
        Raises PlanError."""
        spans.draft(self._drafted, self._accepted)
        for row, position, slot in self._saves:
            computed = spans.columns[spans.columns[:, 0] == row]
            require(len(computed) == 1, "a state is saved of a row that does not compute")
            begin, certain = computed[0, [1, 9]].tolist()
            require(begin < position <= begin + certain, "a state is saved behind no token of its step")
            require(computed[0, 6] == 0, "three states of one row are saved in a step")
            spans.save(row, position, slot)

    def check(self, step: Step) -> None:
        """Raises PlanError unless each row of a step goes on where its states have stopped, and there is room
        for what is drafted."""
        fits = step.starts == self._lengths[step.rows]
        require(bool(fits.all()), "a row does not begin where its states have stopped")
        self._drafted[step.rows] = 0
        if step.num_logits is not None:
            self._drafted[step.rows[step.sample_sources]] = step.num_logits - 1
            require(step.num_logits.max(initial=1) - 1 <= self.drafts, "more is drafted than states can keep")

    def finish(self, step: Step) -> None:
        """Follows a step that has been computed. A row that sampled from another one's last position holds
        the same tokens, and gets its states."""
        self._lengths[step.rows] = step.starts + step.counts - self._drafted[step.rows]
        self._accepted[step.rows] = 0
        for _, position, slot in self._saves:
            self._lengths[slot] = position
        sources = step.rows[step.sample_sources]
        for row, source in zip(step.sample_rows.tolist(), sources.tolist(), strict=True):
            if row != source:
                self._copy(source, row)

    def accept(self, rows: Integers, counts: Integers) -> None:
        """Takes how many drafted tokens of the rows [A] were accepted when their step was sampled from."""
        self._accepted[rows] = counts
        self._lengths[rows] += counts

    def _copy(self, source: int, target: int) -> None:
        """To a row, from a row or a checkpoint."""
        accepted = self._accepted[source]
        for tensor in self._states + (self._of_drafts if accepted else []):
            tensor[target].copy_(tensor[source])
        self._lengths[target], self._accepted[target] = self._lengths[source], accepted


def _allocate(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with fitting(WHAT, f"{size[0]} rows do not fit", REMEDY):
        return zeros(size, dtype, device)


def states_bytes(
    specs: Sequence[RowStateSpec], num_rows: int, num_checkpoints: int = 0, drafts: int = 0
) -> int:
    """Returns the bytes of the states of so many rows, with so many drafted tokens each, and checkpoints.
    specs: one per layer that has a state. Raises StartupError where they leave too little for the KV
    cache."""
    needed = num_rows * sum(spec.bytes_per_row(drafts) for spec in specs)
    needed += num_checkpoints * sum(spec.bytes_per_row() for spec in specs)
    available = available_memory()
    if needed > available * MEMORY_PART:
        raise StartupError(
            WHAT,
            f"those of {num_rows} rows and {num_checkpoints} checkpoints take {needed >> 20} MiB, but"
            f" {available >> 20} MiB are available,"
            " a part of which is for the KV cache",
            REMEDY,
        )
    return needed


def layer_caches(model: LanguageModel, cache: KVCache, states: RowStates | None) -> list[LayerCache]:
    """Returns what each layer of a model reads and writes, in the order of the layers."""
    if states is None:
        return cache.layers
    of_blocks, of_rows = iter(cache.layers), iter(states.layers)
    return [
        tuple(chain(*(next(of_rows if isinstance(spec, RowStateSpec) else of_blocks) for spec in specs)))
        for specs in model.layer_specs()
    ]
