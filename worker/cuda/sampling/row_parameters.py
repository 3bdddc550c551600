"""The columns of a kernels.ops.sampling.columns.SamplingColumns on the device.

The host knows all of them without the device: parameters when a row begins, and the position, since every
sample adds one token. So rows that begin are uploaded together, in one copy, with the next step that samples;
positions advance on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kernels.api import COLUMNS, FLOATS, SamplingColumns
from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.filtered_sample import Filters
from kernels.triton.sampling.sample import Draws
from worker.upload import upload

Slot = TypeVar("Slot")

MIRRORED = tuple(name for name in COLUMNS if name != "seed")
"""The columns that a device has in 32 bits: floats as float32, others as int32. Those of RowSlots follow."""

FILTERED = tuple(Filters.__dataclass_fields__)
"""The columns of filters that one kernel applies."""
ALIGNMENT = 4
"""Rows of a step are padded to a multiple of this, so that each column begins at a multiple of 16 bytes:
Triton compiles a kernel once more for pointers that do not."""


class RowSlots(NamedTuple, Generic[Slot]):
    """The rows themselves where something keeps state of them, else -1. In the order of the columns."""

    adjust: Slot  # worker.cuda.sampling.logit_adjustments
    forbid: Slot  # worker.sampling.token_bans
    output: Slot  # the same, of a row whose output is recorded


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of the rows of one step, in its order: [P], with padding."""

    draws: Draws
    filters: Filters
    typical_p: torch.Tensor  # float32
    slots: "RowSlots[torch.Tensor]"  # int32


class DeviceParameters:
    """SamplingColumns on the device. `padding` is a row that is greedy and has no slots."""

    def __init__(self, columns: SamplingColumns, device: torch.device) -> None:
        self.padding = columns.num_rows
        width = columns.num_rows + 1 + -(columns.num_rows + 1) % ALIGNMENT
        self._columns, self._device = columns, device
        self._slots = np.full((len(RowSlots._fields), columns.num_rows), -1, np.int32)
        self._changed: set[int] = set()
        numbers = np.zeros((len(MIRRORED) + len(RowSlots._fields), width), np.int32)
        numbers[len(MIRRORED) :] = -1
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
            self._on_device.index_copy_(1, index, upload(self._packed(rows), self._device))
            seeds = self._columns["seed"][rows].view(np.int64)
            self._seeds_on_device.index_copy_(0, index, upload(seeds, self._device))
            self._changed.clear()

    def _packed(self, rows: Integers) -> npt.NDArray[np.int32]:
        """Returns the columns of rows [N] as the device has them, [columns, N]."""
        numbers = np.empty((len(self._on_device), len(rows)), np.int32)
        for number, name in zip(numbers, MIRRORED, strict=False):
            kind = np.float32 if name in FLOATS else np.int32
            number.view(kind)[:] = self._columns[name][rows].astype(kind)
        numbers[len(MIRRORED) :] = self._slots[:, rows]
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
        values = {
            name: column.view(torch.float32) if name in FLOATS else column
            for name, column in zip(MIRRORED, numbers, strict=False)
        }
        seeds = self._seeds_on_device.index_select(0, row_index)
        return Parameters(
            Draws(values["temperature"], seeds, values["sequence_index"], values["position"]),
            Filters(*(values[name] for name in FILTERED)),
            values["typical_p"],
            RowSlots(*numbers[len(MIRRORED) :]),
        )

    @property
    def positions(self) -> torch.Tensor:
        """The positions of all rows on the device, [rows] int32."""
        return self._on_device[MIRRORED.index("position")]

    @property
    def slots(self) -> "RowSlots[torch.Tensor]":
        """The slots of all rows on the device, [rows] int32."""
        return RowSlots(*self._on_device[len(MIRRORED) :])
