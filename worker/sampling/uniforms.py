"""One uniform number per token: a function of (seed, sequence index, position) and nothing else."""

import torch

from kernels.ops.sampling.philox import philox4x32, uniform53
from kernels.ops.sampling.philox_constants import MASK
from worker.sampling.batch import NewSequence

# Numbers made at a time for a row. Philox costs the same 60 us for 1 number as for several hundred:
# made one by one, they would be half the time of a step that samples one row.
BLOCK = 64


class Uniforms:
    """Per row: key, sequence index, and the block of numbers around its position."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._device = device
        self.keys = torch.zeros(max_num_rows, 2, dtype=torch.int64, device=device)
        self.indexes = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._numbers = torch.zeros(max_num_rows, BLOCK, dtype=torch.float64, device=device)
        self._starts: dict[int, int] = {}  # Row -> position of its first number; absent: has none.

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Takes the seed, any uint64, low word first."""
        seed = sequence.new.sampling.seed
        self.keys[row] = torch.tensor([seed & MASK, seed >> 32], device=self._device)
        self.indexes[row] = sequence.new.sequence_index
        self._starts.pop(row, None)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """The same seed, other numbers."""
        self.keys[row] = self.keys[source_row]
        self.indexes[row] = sequence_index
        self._starts.pop(row, None)

    def remove_row(self, row: int) -> None:
        """Forgets the numbers."""
        self._starts.pop(row, None)

    def draw(self, rows: list[int], row_index: torch.Tensor, positions: list[int]) -> torch.Tensor:
        """The rows' numbers at their positions: [U] float64 in [0, 1). row_index: rows, on the device."""
        starts = [position - position % BLOCK for position in positions]
        pairs = zip(rows, starts, strict=True)
        self._refill({row: start for row, start in pairs if self._starts.get(row) != start})
        columns = torch.tensor([position % BLOCK for position in positions], device=self._device)
        return self._numbers[row_index, columns]

    def _refill(self, starts: dict[int, int]) -> None:
        """Makes the block of numbers that begins at the given position, for each given row."""
        if not starts:
            return
        rows = torch.tensor(list(starts), device=self._device)
        first = torch.tensor(list(starts.values()), device=self._device)
        counters = torch.zeros(len(starts), BLOCK, 4, dtype=torch.int64, device=self._device)
        counters[:, :, 0] = self.indexes[rows, None]
        counters[:, :, 1] = first[:, None] + torch.arange(BLOCK, device=self._device)
        keys = self.keys[rows].repeat_interleave(BLOCK, dim=0)
        self._numbers[rows] = uniform53(philox4x32(counters.view(-1, 4), keys)).view(-1, BLOCK)
        self._starts.update(starts)
