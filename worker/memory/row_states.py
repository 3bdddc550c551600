"""The states of rows that layers of linear attention keep, a slot per row, beside the blocks.

A state holds all tokens of its row up to one position and cannot go back: a row begins at its first token,
and goes on where it has stopped. So nothing of a prompt is shared through blocks, a preempted row is computed
again, and drafts are refused.
"""

from collections.abc import Sequence

import numpy as np
import torch

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.attention.plan import LayerCache
from worker.attention.row_state import DeltaStateSpec
from worker.memory.kv_cache import MEMORY_PART, NO_MEMORY, KVCache, available_memory, zeros
from worker.models.base import LanguageModel
from worker.step.plan_reader import Step
from worker.step.rows import require

WHAT, REMEDY = "cannot allocate the states of rows", "use a smaller --max-num-seqs"


class RowStates:
    """The states of one worker. A worker.step.plan_reader.RowFeature."""

    def __init__(self, specs: Sequence[DeltaStateSpec], num_rows: int, device: torch.device) -> None:
        """specs: one per layer that has a state. Raises StartupError when the memory is not there."""
        self.layers: list[LayerCache] = [
            tuple(_allocate((num_rows, *plane.block_shape), plane.dtype, device) for plane in spec.planes())
            for spec in specs
        ]
        self._tensors = [tensor for layer in self.layers for tensor in layer]
        self._lengths = np.zeros(num_rows, np.int64)  # tokens that each row's states hold

    @property
    def num_bytes(self) -> int:
        """Of all rows."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """See RowFeature. Layers take a row's state for zeros at its first token."""
        self._lengths[row] = 0

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """See RowFeature."""
        self._copy(source_row, row)

    def remove_row(self, row: int) -> None:
        """See RowFeature."""

    def check(self, step: Step) -> None:
        """Raises PlanError unless each row of a step goes on where its states have stopped."""
        fits = step.starts == self._lengths[step.rows]
        require(bool(fits.all()), "a row does not begin where its states have stopped")

    def finish(self, step: Step) -> None:
        """Follows a step that has been computed. A row that sampled from another one's last position holds
        the same tokens, and gets its states."""
        self._lengths[step.rows] = step.starts + step.counts
        sources = step.rows[step.sample_sources]
        for row, source in zip(step.sample_rows.tolist(), sources.tolist(), strict=True):
            if row != source:
                self._copy(source, row)

    def _copy(self, source: int, target: int) -> None:
        for tensor in self._tensors:
            tensor[target].copy_(tensor[source])
        self._lengths[target] = self._lengths[source]


def _allocate(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    try:
        return zeros(size, dtype, device)
    except NO_MEMORY as error:
        raise StartupError(WHAT, f"{size[0]} rows do not fit: {error}", REMEDY) from error


def states_bytes(specs: Sequence[DeltaStateSpec], num_rows: int) -> int:
    """Returns the bytes of the states of so many rows. specs: one per layer that has a state. Raises
    StartupError where they leave too little for the KV cache."""
    needed = num_rows * sum(spec.bytes_per_row for spec in specs)
    available = available_memory()
    if needed > available * MEMORY_PART:
        raise StartupError(
            WHAT,
            f"those of {num_rows} rows take {needed >> 20} MiB, but {available >> 20} MiB are available,"
            " a part of which is for the KV cache",
            REMEDY,
        )
    return needed


def layer_caches(model: LanguageModel, cache: KVCache, states: RowStates | None) -> list[LayerCache]:
    """Returns what each layer of a model reads and writes, in the order of the layers."""
    if states is None:
        return cache.layers
    of_blocks, of_rows = iter(cache.layers), iter(states.layers)
    return [next(of_rows if isinstance(spec, DeltaStateSpec) else of_blocks) for spec in model.layer_specs()]
