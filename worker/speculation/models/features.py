"""What a head reads of the target's steps: a vector of features for each slot of the cache.

The target stores the features of each position that it computes, under the slot of its keys and values: so
they are there for a prefix that the cache has, and go with a block that is copied, or swapped out and in. A
row that is not drafted for costs a vector per token, and nothing else: the head computes when it drafts.

The slot of a position that is only drafted has what the head left at the position before. The step that
verifies the draft computes that position, and stores the features of the target there.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from kernels.api import block_copies, zeros
from kernels.ops.attention.ragged import Integers, ranges
from worker.models.base import LanguageModel
from worker.step.plan_reader import Step, Swaps
from worker.step.rows import RowTable

CPU = torch.device("cpu")


class Head(LanguageModel):
    """A LanguageModel that computes a position from the features there and the next token. `features` must
    be set before each step."""

    features: torch.Tensor  # [T, E]
    states: torch.Tensor  # [T, E], of the step that was computed last: the features of the next positions

    @abstractmethod
    def fuse(self, captured: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the features [T, E] of hidden states [T, E] behind each of the layers that are read."""


class FeatureCache:
    """Features by slot, of one row table."""

    def __init__(self, rows: RowTable, width: int, dtype: torch.dtype, num_host_blocks: int) -> None:
        """width: E. num_host_blocks: of the swap space. Call it within kv_cache.fitting()."""
        self._rows, self._size = rows, rows.block_size
        shape = rows.block_size, width
        self._pool = zeros((1, rows.cache_blocks, *shape), dtype, CPU)
        self._host = zeros((num_host_blocks, 1, *shape), dtype, CPU)
        self._slots = self._pool.view(-1, width)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All blocks, and those in host memory."""
        return [self._pool, self._host]

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, without those in host memory."""
        return self._pool.nbytes

    def store(self, step: Step, row_starts: Integers, features: torch.Tensor) -> None:
        """Stores the features of a step's tokens. row_starts, features [T, E]: as in StepBatch."""
        slots, tokens = self._places(step, row_starts)
        self._slots.index_copy_(0, torch.from_numpy(slots), features[torch.from_numpy(tokens)])

    def gather(self, step: Step, row_starts: Integers) -> torch.Tensor:
        """Returns the features [T, E] of a step's tokens; see store()."""
        slots, tokens = self._places(step, row_starts)
        in_order = np.empty(len(slots), np.int64)
        in_order[tokens] = slots
        return self._slots[torch.from_numpy(in_order)]

    def hand_on(self, step: Step, row_starts: Integers, states: torch.Tensor) -> None:
        """Stores what a head has left at the last position of each row that samples as the features of the
        next one. step: of the head. states: [T, E]."""
        rows, sources, size = step.sample_rows, step.sample_sources, self._size
        ends = (step.starts + step.counts)[sources]
        places = self._rows.blocks[rows, ends // size] * size + ends % size
        last = (row_starts + step.counts - 1)[sources]
        self._slots.index_copy_(0, torch.from_numpy(places), states[torch.from_numpy(last)])

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        """Copies blocks to host memory and back, then blocks [C] to blocks [C]."""
        pool, host = self._pool, self._host
        if swaps is not None:
            block_copies.swap_out(pool, host, swaps.out_blocks.tolist(), swaps.out_host_blocks.tolist())
            block_copies.swap_in(pool, host, swaps.in_host_blocks.tolist(), swaps.in_blocks.tolist())
        if len(sources):
            block_copies.copy_blocks(pool, torch.from_numpy(sources), torch.from_numpy(targets))

    def _places(self, step: Step, row_starts: Integers) -> tuple[Integers, Integers]:
        """Returns the slots [T] of a step's tokens, in the order of its rows, and their indexes [T] in the
        batch."""
        owners, positions = ranges(step.starts, step.counts)
        blocks = self._rows.blocks[step.rows[owners], positions // self._size]
        tokens = (row_starts - step.starts)[owners] + positions
        return blocks * self._size + positions % self._size, tokens
