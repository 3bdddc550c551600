"""Which slots of a draft model's cache hold keys and values of the tokens that its rows have now.

The draft model has a cache of its own with the blocks of the target's: the same block tables, so that rows
with a common prefix share what was computed for it, and a cached prefix may be there already. It computes a
token only when it drafts, so its cache lags behind. A block counts its first slots that are right:

    the target computes tokens from slot s on     at most s: other tokens may lie there now
    a block is copied                             as many as of its source
    a block comes back from host memory           none: those of the draft model were not copied
    the draft model computes tokens               up to there

A wrong count would make drafts worse, never outputs.
"""

import numpy as np

from kernels.ops.attention.ragged import Integers, ranges
from worker.step.rows import RowTable, require


class DraftSlots:
    """Counts of all blocks of one row table."""

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._right = np.zeros(rows.cache_blocks, np.int64)  # [B] first slots that are right

    def length(self, row: int) -> int:
        """Returns how many of a row's first tokens the draft model need not compute; never all of them."""
        size, end = self._rows.block_size, int(self._rows.num_tokens[row]) - 1
        right = self._right[self._rows.blocks[row, : -(-end // size)]]
        whole = int(np.argmin(np.append(right == size, False)))
        partly = int(right[whole]) if whole < len(right) else 0
        return min(end, whole * size + partly)

    def computed(self, row: int, start: int, end: int) -> None:
        """The draft model has computed a row's tokens from start to end."""
        size = self._rows.block_size
        blocks = self._rows.blocks[row, start // size : -(-end // size)]
        self._right[blocks[:-1]] = size
        self._right[blocks[-1]] = end - (end - 1) // size * size

    def write(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """The target computes tokens of the rows [R]. Raises PlanError where there can be no such tokens."""
        size, table = self._rows.block_size, self._rows
        require(len(rows) == len(starts) == len(counts), "rows, starts and counts differ in length")
        require((rows < table.max_num_rows).all(), "a computing row is out of range")
        require((starts + counts <= table.max_model_len).all(), "a row computes beyond max_model_len")
        first, last = starts // size, (starts + counts - 1) // size
        if (first == last).all():  # as in most steps that decode
            np.minimum.at(self._right, table.blocks[rows, first], starts % size)
            return
        owners, places = ranges(first, last - first + 1)
        kept = np.where(places == first[owners], (starts % size)[owners], 0)
        np.minimum.at(self._right, table.blocks[rows[owners], places], kept)

    def copy(self, sources: Integers, targets: Integers) -> None:
        """Blocks [C] were copied."""
        self._right[targets] = self._right[sources]

    def forget(self, blocks: Integers) -> None:
        """Blocks came back from host memory."""
        self._right[blocks] = 0
