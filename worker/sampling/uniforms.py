"""One uniform number per token: a function of (seed, sequence index, position) and nothing else."""

import torch

from kernels.ops.sampling.philox import philox4x32, uniform53
from worker.sampling.state import SamplingState

BLOCK = 64
"""Numbers made at a time for a row. Philox takes 60 us for 1 number as for several hundred: made one by one,
they would be half the time of a step that samples one row."""


class Uniforms:
    """A block of numbers of each row, around its position."""

    def __init__(self, state: SamplingState) -> None:
        self._keys, self._indexes = torch.from_numpy(state.keys), torch.from_numpy(state.sequence_index)
        self._numbers = torch.zeros(len(state.keys), BLOCK, dtype=torch.float64)
        self._starts: dict[int, int] = {}  # row -> position of its first number; absent: it has none

    def forget(self, row: int) -> None:
        """Drops the numbers of a row whose seed or sequence index changes."""
        self._starts.pop(row, None)

    def draw(self, rows: list[int], positions: list[int]) -> torch.Tensor:
        """Returns the numbers of rows [U] at their positions [U]: float64 in [0, 1)."""
        starts = [position - position % BLOCK for position in positions]
        pairs = zip(rows, starts, strict=True)
        self._refill({row: start for row, start in pairs if self._starts.get(row) != start})
        columns = torch.tensor([position % BLOCK for position in positions], dtype=torch.int64)
        return self._numbers[torch.tensor(rows, dtype=torch.int64), columns]

    def _refill(self, starts: dict[int, int]) -> None:
        """Makes the block of numbers that begins at the given position, for each given row."""
        if not starts:
            return
        rows, first = torch.tensor(list(starts)), torch.tensor(list(starts.values()))
        counters = torch.zeros(len(starts), BLOCK, 4, dtype=torch.int64)
        counters[:, :, 0] = self._indexes[rows, None]
        counters[:, :, 1] = first[:, None] + torch.arange(BLOCK)
        keys = self._keys[rows].repeat_interleave(BLOCK, dim=0)
        self._numbers[rows] = uniform53(philox4x32(counters.view(-1, 4), keys)).view(-1, BLOCK)
        self._starts.update(starts)
