"""The columns of a kernels.ops.sampling.columns.SamplingColumns on the device.

The host knows all of them without the device: parameters when a row begins, and the position, since every
sample adds one token. So rows that begin are uploaded together, in one copy, with the next step that samples;
positions advance on both sides.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from kernels.api import SamplingColumns
from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.draws import RowParameters
from kernels.triton.sampling.ops import TritonSampling
from worker.upload import upload

Slot = TypeVar("Slot")

ALIGNMENT = 4
"""Rows of a step are padded to a multiple of this, so that each column begins at a multiple of 16 bytes:
Triton compiles a kernel once more for pointers that do not."""


class RowSlots(NamedTuple, Generic[Slot]):
    """The rows themselves where something keeps state of them, else -1. In the order of the columns."""

    adjust: Slot  # worker.cuda.sampling.sampler
    forbid: Slot  # worker.sampling.token_bans
    output: Slot  # the same, of a row whose output is recorded


class DeviceParameters:
    """SamplingColumns on the device. `padding` is a row that is greedy and has no slots."""

    def __init__(self, columns: SamplingColumns, device: torch.device) -> None:
        self.padding = columns.num_rows
        width = columns.num_rows + 1 + -(columns.num_rows + 1) % ALIGNMENT
        self._columns, self._device = columns, device
        self._slots = np.full((len(RowSlots._fields), columns.num_rows), -1, np.int32)
        self._changed: set[int] = set()
        numbers = np.zeros((len(SamplingColumns.MIRRORED) + len(self._slots), width), np.int32)
        numbers[len(SamplingColumns.MIRRORED) :] = -1
        self._on_device = upload(numbers, device)
        self._seeds_on_device = upload(np.zeros(width, np.int64), device)

    def set_row(self, row: int, slots: RowSlots[int]) -> None:
        """Begins a row whose entries in the columns are there; they are uploaded later."""
        self._slots[:, row] = slots
        self._changed.add(row)

    def upload_changes(self) -> None:
        """Uploads the rows that began. Their positions include the tokens that the device has added since."""
        if self._changed:
            rows = np.fromiter(self._changed, np.int64)
            index = upload(rows, self._device)
            numbers = np.concatenate((self._columns.mirrored(rows), self._slots[:, rows]))
            self._on_device.index_copy_(1, index, upload(numbers, self._device))
            seeds = self._columns["seed"][rows].view(np.int64)
            self._seeds_on_device.index_copy_(0, index, upload(seeds, self._device))
            self._changed.clear()

    def index(self, rows: Sequence[int] | Integers) -> torch.Tensor:
        """Returns rows padded for gather(), [P] int32."""
        padded = np.full(len(rows) + -len(rows) % ALIGNMENT, self.padding, np.int32)
        padded[: len(rows)] = rows
        return upload(padded, self._device)

    def gather(self, row_index: torch.Tensor) -> tuple[RowParameters, RowSlots[torch.Tensor]]:
        """Returns the parameters of rows [P], and their slots [P] int32. row_index: integers; P a multiple of
        ALIGNMENT."""
        assert row_index.shape[0] % ALIGNMENT == 0
        numbers = self._on_device.index_select(1, row_index)
        seeds = self._seeds_on_device.index_select(0, row_index)
        parameters = TritonSampling.row_parameters(numbers[: len(SamplingColumns.MIRRORED)], seeds)
        return parameters, RowSlots(*numbers[len(SamplingColumns.MIRRORED) :])

    @property
    def positions(self) -> torch.Tensor:
        """The positions of all rows on the device, [rows] int32."""
        return self._on_device[SamplingColumns.MIRRORED.index("position")]

    @property
    def slots(self) -> "RowSlots[torch.Tensor]":
        """The slots of all rows on the device, [rows] int32."""
        return RowSlots(*self._on_device[len(SamplingColumns.MIRRORED) :])
