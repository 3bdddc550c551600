"""Numbers of rows: a table on the host, and the same table on the device.

The host knows all of them by itself: parameters when a row begins, and the position, since every sample adds
one token to it, whichever that is. So rows that begin are written on the host and brought over together, with
the next step that samples, in one copy; positions advance on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.filtered_sample import Filters
from kernels.triton.sampling.sample import Draws
from worker.cuda.upload import upload
from worker.sampling.batch import NewSequence

(
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    TYPICAL_P,
    INDEX,
    POSITION,
    ADJUST_SLOT,
    FORBID_SLOT,
    OUTPUT_SLOT,
) = range(10)

ALIGNMENT = 4
"""Rows of a step are padded to multiples of this, so that each of its columns begins at a multiple of 16
bytes: Triton compiles once more for pointers that do not."""


class RowSlots(NamedTuple):
    """Where a row has more than numbers; -1: it has not. In the order of their columns."""

    adjust: int  # worker.cuda.sampling.logit_adjustments
    forbid: int  # worker.cuda.sampling.token_bans
    output: int  # the same, of a row whose output is looked at


SLOTS = slice(ADJUST_SLOT, OUTPUT_SLOT + 1)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of the rows of one step, in its order. [P], with padding."""

    draws: Draws
    filters: Filters
    typical_p: torch.Tensor  # float32
    adjust_slots: torch.Tensor  # int32; -1: none
    forbid_slots: torch.Tensor  # int32; -1: none


class Columns:
    """`padding` is the row of those that are none: greedy, and without slots."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self.padding = max_num_rows
        width = max_num_rows + 1 + -(max_num_rows + 1) % ALIGNMENT
        self._numbers = np.zeros((OUTPUT_SLOT + 1, width), np.int32)
        self._floats = self._numbers.view(np.float32)  # The same memory.
        self._numbers[SLOTS] = -1
        self._seeds = np.zeros(width, np.int64)
        self._changed: set[int] = set()
        self._device = device
        self._on_device = upload(self._numbers.copy(), device)
        self._seeds_on_device = upload(self._seeds.copy(), device)

    def set(self, row: int, sequence: NewSequence, slots: RowSlots) -> None:
        """Begins a row."""
        self._floats[TEMPERATURE, row] = sequence.scalar("temperature", 1.0)
        self._floats[TOP_P, row] = sequence.scalar("top_p", 1.0)
        self._floats[MIN_P, row] = sequence.scalar("min_p", 0.0)
        self._floats[TYPICAL_P, row] = sequence.scalar("typical_p", 1.0)
        self._numbers[TOP_K, row] = min(int(sequence.scalar("top_k", 0)), np.iinfo(np.int32).max)
        self._set_index(row, sequence.new.sequence_index)
        self._numbers[POSITION, row] = len(sequence.output_ids)
        self._numbers[SLOTS, row] = slots
        self._seeds[row] = np.uint64(sequence.new.sampling.seed).view(np.int64)
        self._changed.add(row)

    def copy(self, row: int, source_row: int, sequence_index: int, slots: RowSlots) -> None:
        """Begins a row as a copy of another."""
        self._numbers[:, row] = self._numbers[:, source_row]
        self._numbers[SLOTS, row] = slots
        self._seeds[row] = self._seeds[source_row]
        self._set_index(row, sequence_index)
        self._changed.add(row)

    def position(self, rows: Integers) -> Integers:
        """[A]: output tokens of the rows, those of steps that are still running among them."""
        positions: Integers = self._numbers[POSITION, rows]
        return positions

    def advance(self, rows: Integers) -> None:
        """Each of the rows gets a token, on the host. On the device: kernels.triton.step.record_tokens."""
        self._numbers[POSITION, rows] += 1

    def bring_over(self) -> None:
        """Brings over the rows that began. What the device has done with their positions since is in them."""
        if self._changed:
            rows = np.fromiter(self._changed, np.int64)
            index = upload(rows, self._device)
            self._on_device.index_copy_(1, index, upload(self._numbers[:, rows], self._device))
            self._seeds_on_device.index_copy_(0, index, upload(self._seeds[rows], self._device))
            self._changed.clear()

    def index(self, rows: Sequence[int] | Integers) -> torch.Tensor:
        """[P] int64: rows as gather() wants them."""
        padded = np.full(len(rows) + -len(rows) % ALIGNMENT, self.padding)
        padded[: len(rows)] = rows
        return upload(padded, self._device)

    def gather(self, row_index: torch.Tensor) -> Parameters:
        """row_index: [P] integers, P a multiple of ALIGNMENT."""
        assert row_index.shape[0] % ALIGNMENT == 0
        numbers = self._on_device.index_select(1, row_index)
        floats = numbers.view(torch.float32)
        seeds = self._seeds_on_device.index_select(0, row_index)
        return Parameters(
            Draws(floats[TEMPERATURE], seeds, numbers[INDEX], numbers[POSITION]),
            Filters(numbers[TOP_K], floats[TOP_P], floats[MIN_P]),
            floats[TYPICAL_P],
            numbers[ADJUST_SLOT],
            numbers[FORBID_SLOT],
        )

    def on_device(self, column: int) -> torch.Tensor:
        """[rows] int32: a column of all rows."""
        return self._on_device[column]

    def _set_index(self, row: int, sequence_index: int) -> None:
        self._numbers[INDEX, row] = np.uint32(sequence_index).view(np.int32)
