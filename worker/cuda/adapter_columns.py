"""Which tokens have which adapter, on the device, as kernels read it: kernels.ops.layers.adapters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.api import adapters
from worker.cuda.device import Device
from worker.cuda.rows import aligned
from worker.step.rows import require


class AdapterColumns:
    """The adapters of up to so many tokens, or rows of logits. One array: the tokens, tiles and spans."""

    def __init__(self, device: Device, most_tokens: int, most_adapters: int, parts: Sequence[int]) -> None:
        """most_adapters: that a step may have. parts: see DeviceAdapters."""
        self._device, self._parts = device, parts
        self._most_adapters = most_adapters
        self._tiles_at = aligned(most_tokens)
        self._spans_at = self._tiles_at + aligned(3 * self._num_tiles(most_tokens))
        self._size = self._spans_at + 3 * most_adapters
        self._columns = torch.zeros(self._size, dtype=torch.int64, device=device.place)

    def load(self, given: adapters.StepAdapters) -> None:
        """Uploads the adapters of the next step to be launched, to addresses that captured graphs know.
        Raises PlanError where they are too many."""
        self._device.send_into(self._columns, self._written(given))

    def sent(self, given: adapters.StepAdapters, tokens: int) -> adapters.DeviceAdapters:
        """Returns the adapters of so many tokens at an address of their own."""
        return self._view(self._device.send(self._written(given)), tokens)

    def of(self, tokens: int) -> adapters.DeviceAdapters:
        """Returns those of the first so many tokens, as they are loaded."""
        return self._view(self._columns, tokens)

    def nowhere(self, tokens: int) -> adapters.DeviceAdapters:
        """Returns what has the sizes of of(), and says that no token has an adapter."""
        return self._view(torch.zeros_like(self._columns), tokens)

    def _num_tiles(self, tokens: int) -> int:
        """Returns the most tiles that so many tokens can have; 0: none has an adapter."""
        most = self._most_adapters
        return min(tokens, tokens // adapters.TILE + most) if most else 0

    def _written(self, given: adapters.StepAdapters) -> npt.NDArray[np.int64]:
        most = self._most_adapters
        require(len(given.groups) <= most, f"a step has more than {most} adapters (--max-loras)")
        tiles, spans, first = list[tuple[int, int, int]](), list[tuple[int, int, int]](), 0
        for weights, count in given.groups:
            spans.append((weights.address, first, count))
            for begin in range(0, count, adapters.TILE):
                tiles.append((weights.address, first + begin, min(adapters.TILE, count - begin)))
            first += count
        columns = np.zeros(self._size, np.int64)
        columns[:first] = given.tokens.numpy()
        for at, rows in (self._tiles_at, tiles), (self._spans_at, spans):
            columns[at : at + 3 * len(rows)] = np.array(rows, np.int64).ravel()
        return columns

    def _view(self, columns: torch.Tensor, tokens: int) -> adapters.DeviceAdapters:
        tiles = columns[self._tiles_at :][: 3 * self._num_tiles(tokens)].view(-1, 3)
        spans = columns[self._spans_at : self._size].view(-1, 3)
        return adapters.DeviceAdapters.of(columns[:tokens], tiles, spans, self._parts)
