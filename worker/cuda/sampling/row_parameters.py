"""The columns of a worker.sampling.state.SamplingState on the device.

The host knows all of them without the device: parameters when a row begins, and the position, since every
sample adds one token. So rows that begin are uploaded together, in one copy, with the next step that samples;
positions advance on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.filtered_sample import Filters
from kernels.triton.sampling.sample import Draws
from worker.cuda.device.upload import upload
from worker.sampling.state import SamplingState

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
"""Rows of a step are padded to a multiple of this, so that each column begins at a multiple of 16 bytes:
Triton compiles a kernel once more for pointers that do not."""


class RowSlots(NamedTuple):
    """Where processors keep the state of a row, -1: nowhere. In the order of the columns."""

    adjust: int  # worker.cuda.sampling.logit_adjustments
    forbid: int  # worker.cuda.sampling.token_bans
    output: int  # the same, of a row whose output is recorded


SLOTS = slice(ADJUST_SLOT, OUTPUT_SLOT + 1)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of the rows of one step, in its order: [P], with padding."""

    draws: Draws
    filters: Filters
    typical_p: torch.Tensor  # float32
    adjust_slots: torch.Tensor  # int32; -1: none
    forbid_slots: torch.Tensor  # int32; -1: none


class DeviceParameters:
    """The columns of a SamplingState on the device. `padding` is a row that is greedy and has no slots."""

    def __init__(self, state: SamplingState, max_num_rows: int, device: torch.device) -> None:
        self.padding = max_num_rows
        width = max_num_rows + 1 + -(max_num_rows + 1) % ALIGNMENT
        self._state, self._device = state, device
        self._slots = np.full((len(RowSlots._fields), max_num_rows), -1, np.int32)
        self._changed: set[int] = set()
        numbers = np.zeros((OUTPUT_SLOT + 1, width), np.int32)
        numbers[SLOTS] = -1
        self._on_device = upload(numbers, device)
        self._seeds_on_device = upload(np.zeros(width, np.int64), device)

    def set_row(self, row: int, slots: RowSlots) -> None:
        """Begins a row whose entries in the columns are there; they are uploaded later."""
        self._slots[:, row] = slots
        self._changed.add(row)

    def upload_changes(self) -> None:
        """Uploads the rows that began. Their positions include the tokens that the device has added since."""
        if self._changed:
            rows = np.fromiter(self._changed, np.int64)
            index = upload(rows, self._device)
            keys = self._state.keys[rows]
            self._on_device.index_copy_(1, index, upload(self._packed(rows), self._device))
            seeds = upload(keys[:, 0] | keys[:, 1] << 32, self._device)
            self._seeds_on_device.index_copy_(0, index, seeds)
            self._changed.clear()

    def _packed(self, rows: Integers) -> npt.NDArray[np.int32]:
        """Returns the columns of rows [N] as the device has them, [10, N]."""
        state, numbers = self._state, np.empty((OUTPUT_SLOT + 1, len(rows)), np.int32)
        floats = numbers.view(np.float32)  # the same memory
        floats[TEMPERATURE], floats[TOP_P] = state.temperature[rows], state.top_p[rows]
        floats[MIN_P], floats[TYPICAL_P] = state.min_p[rows], state.typical_p[rows]
        numbers[TOP_K], numbers[POSITION] = state.top_k[rows], state.position_column[rows]
        numbers[INDEX] = state.sequence_index[rows].astype(np.uint32).view(np.int32)
        numbers[SLOTS] = self._slots[:, rows]
        return numbers

    def index(self, rows: Sequence[int] | Integers) -> torch.Tensor:
        """Returns rows padded for gather(), [P] int32."""
        padded = np.full(len(rows) + -len(rows) % ALIGNMENT, self.padding, np.int32)
        padded[: len(rows)] = rows
        return upload(padded, self._device)

    def gather(self, row_index: torch.Tensor) -> Parameters:
        """Returns the parameters of rows [P]. row_index: integers; P a multiple of ALIGNMENT."""
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
        """Returns a column of all rows, [rows] int32."""
        return self._on_device[column]
