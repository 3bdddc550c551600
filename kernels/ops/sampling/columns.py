"""Sampling parameters by row: one table, which the kernels of a CPU read in place and a CUDA device mirrors.

Parameters arrive as float32 numbers, so that float64 and float32 hold them exactly. A new filter is a name
here and an entry in kernels.ops.sampling.filters.FILTERS. kernels.cpu.sampling.choose leaves rows with a
filter that it does not know to torch; a CUDA device needs a kernel, and a field of
kernels.triton.sampling.draws.RowParameters.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_k": 0}
"""Parameters, with the values that rows have where a request names none. top_k is an integer, 0 for all."""
FLOATS = tuple(name for name, value in NEUTRAL.items() if isinstance(value, float))
"""Columns in float64; the others are integers."""
COLUMNS = (*NEUTRAL, "sequence_index", "position", "seed")
"""position: output tokens of the row, sampled ones of steps in flight included."""
MIRRORED = tuple(name for name in COLUMNS if name != "seed")
"""The columns that a device has in 32 bits: floats as float32, others as int32."""

UNKNOWN = -2
"""Instead of a token, or of a place in a ranking: last bits of a sum could matter, and torch is to choose."""


class SamplingColumns:
    """One contiguous column of 64-bit numbers per name, which keeps its address."""

    NEUTRAL, MIRRORED, UNKNOWN = NEUTRAL, MIRRORED, UNKNOWN

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.words = np.zeros((len(COLUMNS), num_rows), np.int64)  # floats as their bits
        self.address = self.words.ctypes.data
        kinds = {**dict.fromkeys(FLOATS, np.float64), "seed": np.uint64}
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: words.view(kinds.get(name, np.int64))
            for name, words in zip(COLUMNS, self.words, strict=True)
        }
        self.positions = self["position"].data  # Python reads a number in a third of numpy's time

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Returns a column, [rows] float64, int64, or uint64 for seeds."""
        return self._columns[name]

    def set_row(self, row: int, **values: float) -> None:
        """Begins a row; parameters that are not named become neutral, other columns 0."""
        for name, column in self._columns.items():
            column[row] = values.get(name, NEUTRAL.get(name, 0))

    def mirrored(self, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
        """Returns the MIRRORED columns of rows [N] as a device has them, [columns, N]."""
        numbers = np.empty((len(MIRRORED), len(rows)), np.int32)
        for number, name in zip(numbers, MIRRORED, strict=True):
            kind = np.float32 if name in FLOATS else np.int32
            number.view(kind)[:] = self[name][rows].astype(kind)
        return numbers

    def uses(self, row: int, *names: str) -> bool:
        """Returns whether one of these parameters of the row is not neutral."""
        return any(self[name][row] != NEUTRAL[name] for name in names)
