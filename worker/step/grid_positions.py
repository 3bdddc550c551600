"""Positions of three axes, time, row and column, of rows that have images (M-RoPE).

    text     t = h = w     the next one after all that stands before it
    image    t = s, h = s + its row, w = s + its column, of vectors; s: the next one where it begins
             behind it s + max(rows, columns) is next

A prompt "a b" + image of 2 x 3 vectors + "c":

    index    0  1    2  3  4  5  6  7    8
    t        0  1    2  2  2  2  2  2    5
    h        0  1    2  2  2  3  3  3    5
    w        0  1    2  3  4  2  3  4    5

They are a function of the prompt's items alone, so that chunks, prefix hits and resumption find the same.
None is above its index, which is still where keys and values are kept. Behind the last image all three are
the index and one number, which is 0 or less.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from kernels.api import StepBatch
from kernels.ops.attention.ragged import Integers, ranges
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.config.audio import AudioConfig
from worker.config.vision import VisionConfig
from worker.step.media import positions_of
from worker.step.plan_reader import Step, ValueByRow
from worker.step.rows import require

AXES = 3


@dataclass(frozen=True, slots=True)
class GridPositions:
    """Those of a row."""

    table: Integers  # [3, L] of the tokens up to the last vector
    shift: int  # added to the index of all others

    def write(self, start: int, out: Integers) -> None:
        """Writes those of the tokens from `start` on. out: [3, N]."""
        known = self.table[:, start : start + out.shape[1]]
        out[:, : known.shape[1]] = known
        out[:, known.shape[1] :] = np.arange(start + known.shape[1], start + out.shape[1]) + self.shift


def grid_positions(items: Iterable[tuple[Integers, int, int]]) -> GridPositions:
    """items: indexes of the vectors of each [N], and how many rows and columns of them it has; if these are
    not N in all, the vectors are as many as there are indexes."""
    given = list(items)
    taken = np.ones(1 + max(int(indexes[-1]) for indexes, _, _ in given), np.int64)  # [L] by each token
    for indexes, rows, columns in given:
        taken[indexes] = 0
        taken[indexes[-1]] = min(max(rows, columns), len(indexes))
    following = np.cumsum(taken)
    table = np.tile(following - taken, (AXES, 1))
    for indexes, _, columns in given:
        number = np.arange(len(indexes))
        table[:, indexes] = table[0, indexes[0]] + np.stack((0 * number, number // columns, number % columns))
    return GridPositions(table, int(following[-1]) - len(taken))


class GridPositionRows(ValueByRow[GridPositions]):
    """Those of the rows that have images."""

    def __init__(self, vision: VisionConfig | AudioConfig | None) -> None:
        """vision: the encoder of images or sounds; None: the model has none."""
        super().__init__()
        self._pixels = 0
        if isinstance(vision, VisionConfig) and vision.has_grid_positions:
            self._pixels = vision.pixels_per_vector

    @property
    def are_read(self) -> bool:
        """Whether the model has such positions."""
        return self._pixels > 0

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if self.are_read and new.media:
            self._by_row[row] = grid_positions([self._item(row, item) for item in new.media])

    def _item(self, row: int, item: engine_pb2.MediaItem) -> tuple[Integers, int, int]:
        """Returns the indexes of the vectors of an item, and its rows and columns of them."""
        require(len(item.shape) in (3, 4), f"row {row} has an item of the shape {list(item.shape)}")
        rows, columns = (max(1, side // self._pixels) for side in item.shape[-3:-1])
        return positions_of(row, item), rows, columns

    def put(self, step: Step, batch: StepBatch) -> StepBatch:
        """Returns the batch of a step with the positions of its tokens, if one of its rows has images."""
        if self._by_row.keys().isdisjoint(step.rows.tolist()):
            return batch
        found = self.of_step(batch.row_starts, step)
        return batch if found is None else batch.with_grid_positions(torch.from_numpy(found))

    def of_step(self, row_starts: Integers, step: Step) -> Integers | None:
        """Returns the positions [3, T] of the tokens of a step; None: the model reads none. row_starts: [R]
        index of each row's first token."""
        if not self.are_read:
            return None
        owners, index = ranges(step.starts, step.counts)
        found = np.empty((AXES, len(index)), np.int64)
        found[:, np.repeat(row_starts, step.counts) + index - step.starts[owners]] = index
        columns = step.rows.tolist(), step.starts.tolist(), step.counts.tolist(), row_starts.tolist()
        for row, start, count, first in zip(*columns, strict=True):
            if (of_row := self._by_row.get(row)) is not None:
                of_row.write(start, found[:, first : first + count])
        return found
